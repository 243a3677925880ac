"""The outside: Kopf's handlers, the Kubernetes client, the workers' admin port, the Lease, metrics and health.

Reads what is there, hands it to `reconcile`, and carries out what comes back. Nothing is decided here.
"""
