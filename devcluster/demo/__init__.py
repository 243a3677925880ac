"""The demo: from nothing to a model that answers and scales, told as it happens. `python -m devcluster.demo`, or `make demo`."""
