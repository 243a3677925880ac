"""The inference engine and its OpenAI-compatible server.

Runs the same with and without Kubernetes, of which it knows nothing.
"""
