"""What a KV format does to a model's predictions: `kvtide quality`.

The formats read one text in lockstep through the pool and the attention that serve, and are compared with BF16 token by
token. `statistics` turns what was seen into rows and knows no tensor; `command` knows nothing but options. Nothing here
serves, and nothing that serves imports it.
"""
