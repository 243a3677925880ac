"""What Auto takes, as rows."""

import pytest

from kvtide_sizing import served
from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.errors import (
    DoesNotFit,
)
from kvtide_sizing.formats import Precision
from kvtide_sizing.models import catalog
from kvtide_sizing.plan import Plan, Policy, Profile, Workload, plan
from tests.sizing.plan.plans import NATIVE, plan_of


@pytest.mark.parametrize(
    ("loss", "best_first"),
    [
        # What each may cost: INT8 0.3 %, K8V4 1 %, INT4 3 %.
        (5, ["BF16", "INT8", "K8V4", "INT4"]),
        (1, ["BF16", "INT8", "K8V4"]),
        (0.5, ["BF16", "INT8"]),
        (0, ["BF16"]),
    ],
)
def test_auto_takes_the_best_precision_that_reaches_the_wish(loss: float, best_first: list[str]) -> None:
    def chosen(concurrency: int | None) -> Plan:
        workload = Workload(max_context_tokens=4096, target_concurrency=concurrency)
        return plan_of("llama-2-13b", "a100-40gb", workload, Policy(max_quality_loss_percent=loss))

    assert chosen(None).kv.precision == "BF16"
    held = {
        precision: plan_of(
            "llama-2-13b", "a100-40gb", Workload(max_context_tokens=4096), Policy(precision)
        ).max_concurrency
        for precision in best_first
    }
    # 40 GiB less 24.2 of weights: about 13 GiB of KV, of which 4096 tokens take 3.125, 1.59, 1.21 and 0.83 GiB.
    assert list(held.values()) == sorted(set(held.values()))
    for precision, most in held.items():
        assert chosen(most).kv.precision == precision
        assert not [warning for warning in chosen(most).warnings if warning.startswith("targetConcurrency")]
    beyond = chosen(held[best_first[-1]] + 1)
    assert beyond.kv.precision == best_first[-1]
    assert any(warning.startswith("targetConcurrency") for warning in beyond.warnings)


def test_mixed_is_between_int8_and_k8v4() -> None:
    workload = Workload(max_context_tokens=4096)
    held = [
        plan_of("llama-2-70b", "mygpu:150GiB", workload, Policy(precision)).kv.capacity_tokens
        for precision in ("BF16", "INT8", "Mixed", "K8V4", "INT4")
    ]
    assert held == sorted(set(held))


def test_auto_takes_a_smaller_precision_where_bf16_does_not_fit_at_all() -> None:
    workload = Workload(max_context_tokens=16384)
    with pytest.raises(DoesNotFit) as refused:
        plan_of("llama-3.2-3b", "mygpu:8GiB", workload, Policy(precision="BF16"))
    short = Device("mygpu", DeviceKind.GPU, refused.value.needed_bytes - 1)
    assert plan(catalog.builtin("llama-3.2-3b"), short, workload, NATIVE).kv.precision == "INT8"


@pytest.mark.parametrize(
    ("profile", "policy", "concurrency", "chosen"),
    [
        (Profile.CHAT, Policy(kv_heads="Auto", variants=(8,)), 1, (40, "BF16")),
        (Profile.CHAT, Policy(kv_heads="Auto", variants=(8,)), 5, (40, "INT8")),
        (Profile.DOCUMENTS, Policy(kv_heads="Auto", variants=(8,)), 5, (8, "BF16")),
        (Profile.DOCUMENTS, Policy(kv_heads="Auto", variants=(20, 8)), 5, (20, "BF16")),
        (Profile.DOCUMENTS, Policy(kv_heads="Auto"), 5, (40, "INT8")),  # no variant: heads are not pooled unasked
        (Profile.CHAT, Policy(kv_heads=8), 5, (8, "BF16")),
        (Profile.CHAT, Policy(kv_heads="Native", variants=(8,)), 12, (40, "K8V4")),
    ],
)
def test_chat_takes_smaller_numbers_first_and_documents_fewer_heads(
    profile: Profile, policy: Policy, concurrency: int, chosen: tuple[int, str]
) -> None:
    workload = Workload(profile, max_context_tokens=4096, target_concurrency=concurrency)
    result = plan_of("llama-2-13b", "a100-40gb", workload, policy)
    assert (result.attention.kv_heads, result.kv.precision) == chosen
    assert (result.attention.native_kv_heads, result.attention.query_heads) == (40, 40)


def test_what_is_served_bounds_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "PRECISIONS", frozenset({Precision.BF16}))
    workload = Workload(max_context_tokens=4096, target_concurrency=8)
    result = plan_of("llama-2-13b", "a100-40gb", workload, Policy(served_only=True))
    assert result.kv.precision == "BF16"
    int8 = next(other for other in result.alternatives if other.choice == "precision INT8")
    assert not int8.served
    assert int8.max_concurrency > result.max_concurrency
    assert f"INT8 would hold {int8.max_concurrency}, which this release does not serve yet" in result.reasons[0]
