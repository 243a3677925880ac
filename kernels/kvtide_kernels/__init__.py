"""Paged attention and cache writes over a pool of KV blocks. Imports torch and triton only, beside the sizing package."""
