"""`kvtide top`: one worker on one screen, from its /metrics, for people."""
