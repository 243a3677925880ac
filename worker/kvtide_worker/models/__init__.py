"""Where weights come from, and the forward pass over them.

A `Checkpoint` reads one file format under Hugging Face's tensor names; a family's model (llama.py, gemma3.py)
computes. It knows tokens and positions of a flat batch, never requests, blocks or text: attention is handed in,
planned.
"""
