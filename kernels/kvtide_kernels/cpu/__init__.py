"""Paged attention on the CPU, in C++: every format is read as it is stored, and never copied out of the pool.

`build` compiles src/ for each instruction set, `library` finds and loads the one that suits the processor,
`attention` plans and runs a step over `arenas`, and `moves` copies and re-encodes blocks. Nothing here knows a model
or a scheduler.
"""
