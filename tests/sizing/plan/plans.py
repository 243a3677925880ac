"""Plans of built-in models, as tests want them."""

from kvtide_sizing.devices.device import device_named
from kvtide_sizing.models import catalog
from kvtide_sizing.plan import Plan, Policy, Workload, plan

CHAT = Workload()
NATIVE = Policy()


def plan_of(
    model: str = "smollm2-135m",
    device: str = "cpu:1280Mi",
    workload: Workload = CHAT,
    policy: Policy = NATIVE,
) -> Plan:
    return plan(catalog.builtin(model), device_named(device), workload, policy)
