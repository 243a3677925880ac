"""KVTide on a real Kubernetes: every test drives the API server, the operator and the workers as a person would."""
