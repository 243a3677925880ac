"""Why a worker does not come up."""


class CannotStart(Exception):
    """A person has to change something first; the message says what."""
