"""The operator: from an LLMDeployment and what is seen in the cluster to the children it needs, its limits and its replicas."""
