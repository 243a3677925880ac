"""The planner: it chooses block size, KV precision, KV heads and limits, and says why.

Pure decisions over the sums of `memory`; `plan` is the door that the CLI, the operator and the worker come through.
"""

from kvtide_sizing.plan.planner import plan
from kvtide_sizing.plan.record import Plan
from kvtide_sizing.plan.workload import Policy, Profile, Workload

__all__ = ["Plan", "Policy", "Profile", "Workload", "plan"]
