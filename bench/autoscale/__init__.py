"""Scaling policies on a simulated clock, over workers whose scheduler and block manager are the real ones.

What decides is imported and not written again: the operator's own pass (`reconcile.scaling`, `reconcile.limits`) with
its memory in a status, and beside it the rules that people use today. What is modelled is time: how long a step takes,
how long a replica takes to start, when requests come and how long they are. Nothing here runs in a product.
"""
