"""The KV-size model and the planner: what a token of context costs, what fits a device, and why.

Pure Python, no torch, no Kubernetes: it runs in the CLI, in the operator, at admission and in the worker. Only
`kvtide inspect hf://…` touches the network, and only the command files import click, rich and yaml.
"""
