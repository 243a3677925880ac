"""The engine process: what runs in a step, which blocks it uses, and the step itself. Knows tokens, never text or HTTP."""
