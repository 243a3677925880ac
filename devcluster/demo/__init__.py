"""The demo: from nothing to a model that answers and scales, told as it happens.

Run it with `make demo` or `python -m devcluster.demo`.
"""
