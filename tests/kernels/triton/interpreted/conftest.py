"""These run in a process of their own, in which Triton interprets kernels: `tests/kernels/triton/test_interpreted.py`.

Triton reads the variable when it is imported, and another test of the same process may have done that.
"""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*"]
