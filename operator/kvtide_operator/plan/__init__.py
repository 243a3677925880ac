"""From what a user intends to the plan and the pod template of the workers, made once per intent and then kept.

The sizes themselves come from `kvtide_sizing`; this folder only carries a spec there and keeps what comes back.
"""
