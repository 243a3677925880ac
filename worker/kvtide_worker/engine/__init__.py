"""The engine process: what runs in a step, which blocks it uses, and the step itself.

Block manager, scheduler, admission and request decide from counts alone, without torch or a clock; engine computes;
process carries messages. Knows tokens, never text or HTTP.
"""
