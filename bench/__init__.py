"""Load on an OpenAI-compatible endpoint, and what is measured under it."""
