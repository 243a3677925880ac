"""Where weights come from, and the forward pass over them.

A `Checkpoint` reads one file format under Hugging Face's tensor names; `LlamaModel` computes. It knows tokens
and positions of a flat batch, never requests, blocks or text: attention is handed in, planned.
"""
