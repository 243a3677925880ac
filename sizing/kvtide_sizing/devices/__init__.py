"""What a replica can run on: the built-in devices, MIG slices, and what a Kubernetes node says that it has.

Names and numbers only: nothing here asks a driver or a cluster.
"""
