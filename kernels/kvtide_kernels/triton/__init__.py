"""Paged attention on a GPU: Triton kernels that read packed K and V, and scale scores, never tiles.

`attention` plans a step on the host and launches; `write`, `decode`, `prefill` and `moves` are the kernels; `arena` is
where bytes lie, `tiles` and `encode` how they are read and written, `shapes` how large a program is, and `inspect`
what the compiler makes of it all. It imports torch, triton and the sizing package's byte table, and no CUDA library.
"""
