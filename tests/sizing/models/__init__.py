"""Shapes of models: expected values are published numbers, or what transformers builds from the same configuration."""
