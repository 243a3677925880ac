"""Where a device's memory goes: weights, activations, overhead, reserve and the KV pool, in integers of bytes.

Pure sums. What is not known exactly is bounded from above, and replaced by what a worker has measured.
"""
