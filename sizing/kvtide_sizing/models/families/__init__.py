"""One module for each family of models: from a configuration to what its layers keep and what its weights are.

Field names, defaults and layouts are those of each model's class in Hugging Face transformers.
"""
