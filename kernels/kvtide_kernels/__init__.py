"""Paged attention and cache writes over a pool of KV blocks.

It owns the pool's tensors and reads and writes them; which block belongs to whom is decided above it.
A backend is one `PagedAttention`. Imports torch and triton only, beside the sizing package.
"""
