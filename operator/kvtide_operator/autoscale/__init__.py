"""How many replicas, and how many sequences each may run: decided in tokens, from what the workers report.

Every function takes the state, the policy and the time, and returns a decision with its reason and its inputs.
Nothing here reads a clock, a cluster or a worker, and nothing is remembered between calls but what is passed in.
"""
