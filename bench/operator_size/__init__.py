"""How many resources one operator holds: a real API server with a simulated kubelet and simulated workers."""
