"""A real Kubernetes on one Linux machine, for the demo and the tests: `python -m devcluster up`.

It builds the upstream components with Go, runs them as plain processes in a network namespace of their own, and takes
them all down again. It needs root, and neither Docker nor virtualisation. It knows nothing of what KVTide does: it
imports none of the other parts, and builds their images from their Dockerfiles alone.
"""
