"""The OpenAI-compatible API, the admin API, the metrics and the drain: everything that speaks HTTP.

It starts the engine process and talks to it only through `engine.messages`; torch is never imported here. What
decides (protocol, admission, lifecycle, state report) takes no clock and no socket by itself: time and engine state
are arguments.
"""
