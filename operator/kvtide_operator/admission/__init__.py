"""The admission webhook: `kubectl apply`, and its dry run on the server, already answer with what the plan will give.

It judges with the very functions of a pass, so that it never says otherwise than the status would. It must not be
needed: where it is down, or fails, everything is admitted, and the pass judges again.
"""
