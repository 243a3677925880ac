"""Text to token ids and back: tokenizer, chat template, incremental detokenizer, stop strings.

Nothing here knows HTTP, the engine or torch, and nothing here waits or keeps time: text in, ids out, and the other way.
"""
