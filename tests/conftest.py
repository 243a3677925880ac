"""What holds for all tests: a busy machine is slow, and that is no failure."""

from hypothesis import settings

settings.register_profile("kvtide", deadline=None)
settings.load_profile("kvtide")
