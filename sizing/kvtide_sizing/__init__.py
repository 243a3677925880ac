"""The KV-size model and the planner: what a token of context costs, what fits a device, and why.

Pure Python, no torch, no Kubernetes, no network: it runs in the CLI, in the operator, at admission and in the worker.
"""
