"""The operator: from an LLMDeployment and what is seen in the cluster to its children, limits and replicas.

`api` says what a resource is, `plan` what its workers will be, `children` what the cluster is asked for,
`autoscale` how many and how full, and `reconcile` puts these together: all without I/O and without a clock.
`edge` is the rest: Kopf, the Kubernetes client, the workers' admin port, the Lease, metrics and health.
"""
