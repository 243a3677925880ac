"""The typed model of an LLMDeployment and the CRD generated from it.

What a user may write, what the status says, and what this version refuses by name. Nothing here talks to a
cluster, and no other folder invents a field, a label or a reason of its own.
"""
