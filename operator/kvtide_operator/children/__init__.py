"""What the cluster is asked for on behalf of a resource: manifests as plain data, rendered by pure functions.

Every child is owned by the resource through an ownerReference and nothing else, so that deleting the resource removes
everything with the operator dead. Nothing here looks at what is in the cluster; `reconcile` compares.
"""
