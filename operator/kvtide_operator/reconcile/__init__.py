"""One level-based pass over one resource: from what is seen to what is to be done.

`reconcile` is pure and idempotent. It is run on every event and on a timer, remembers nothing but what the status
says, and recomputes every condition each time. It never performs an action itself.
"""
