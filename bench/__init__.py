"""Benchmarks, each a module to run by itself: `python -m bench.NAME --help`. What they measured stands in docs/."""

import os

# Read when torch loads its profiler, which measures a step: it writes about itself to standard error otherwise.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
