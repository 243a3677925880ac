"""Recent tokens in BF16, interpreted, against the reference: several steps of one pool, each read by the next ones."""

from __future__ import annotations

import pytest

from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat
from tests.kernels.triton.interpreted.oracle import name
from tests.kernels.triton.interpreted.twins import Twins

KEEPING = [LayerFormat(INT4, INT4), LayerFormat(INT8, INT4), LayerFormat(BF16, INT4), LayerFormat(INT4, INT8)]
BESIDE = [LayerFormat(BF16, BF16), LayerFormat(INT8, INT8)]
SLOW = pytest.mark.slow


def grow(twins: Twins) -> None:
    """Chunks shorter and longer than 32, decodes before, at and behind the 32nd token, alone and with others."""
    one, two = twins.add(), twins.add()
    twins.step((one, 5), (two, 40))
    twins.step((one, 1), (two, 1))
    twins.step((one, 26), (two, 3))
    twins.step((two, 35), (one, 1))
    twins.step((one, 1), (two, 1))


def test_layers_beside_layers_without() -> None:
    grow(Twins([KEEPING[0], BESIDE[0], KEEPING[1]]))


@SLOW
def test_slots_that_are_wider_than_their_layers() -> None:
    """Two tables that take turns with two formats; the second one's layers have a window."""
    twins = Twins(KEEPING[:2], windows=(None, 20))
    one = twins.add()
    for new in (40, 1, 35, 1):
        twins.step((one, new))


@SLOW
@pytest.mark.parametrize("stored", KEEPING, ids=name)
def test_a_split_decode(stored: LayerFormat) -> None:
    """A sequence's last item has 43 tokens, the other's has 3: its recent ones reach into the item before."""
    twins = Twins([stored], block=64, programs=64)
    one, two = twins.add(), twins.add()
    twins.step((one, 298), (two, 258))
    twins.step((one, 1), (two, 1))
    spans = twins.spans([(one, 1), (two, 1)])
    assert twins.attention.plan(spans).tables[0].parts.tolist() == [[0, 0, 2], [1, 2, 2]]


def test_a_fork_has_no_recent_tokens_of_its_own_yet() -> None:
    twins = Twins(KEEPING[:1])
    one = twins.add()
    twins.step((one, 45))
    two = twins.fork(one)
    twins.step((two, 1), (one, 1))
    twins.step((two, 4))
    twins.step((two, 1))


@SLOW
def test_soft_cap_and_sinks() -> None:
    grow(Twins(KEEPING[:1], soft_cap=4.0, sinks=True))


@pytest.mark.parametrize("stored", [KEEPING[1], *(pytest.param(one, marks=SLOW) for one in KEEPING[::2])], ids=name)
def test_key_bases(stored: LayerFormat) -> None:
    twins = Twins([stored], kv_heads=2, based=True)
    one = twins.add()
    for new in (34, 1, 4, 1):
        twins.step((one, new))


@pytest.mark.parametrize("window", [pytest.param(one, marks=SLOW) for one in (1, 17, 32, 33, 100)])
def test_windows(window: int) -> None:
    twins = Twins(KEEPING[:2], windows=(window,), programs=64)
    grow(twins)
    twins.step((0, 120), (1, 1))
    twins.step((0, 1), (1, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "dim"), [(16, 64), (16, 256), (32, 96), (64, 80), (64, 192), (128, 112), (256, 64), (256, 128)]
)
def test_block_and_head_sizes(block: int, dim: int) -> None:
    grow(Twins(KEEPING[:3] + BESIDE[:1], block=block, dim=dim, kv_heads=2))


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 5, 8, 17])
def test_groups(group: int) -> None:
    grow(Twins(KEEPING[:2], group=group, programs=100))


@pytest.mark.slow
def test_everything_together() -> None:
    formats = [KEEPING[0], BESIDE[0], KEEPING[1]]
    twins = Twins(formats, windows=(None, 50, 7), kv_heads=2, soft_cap=9.0, sinks=True, based=True, num_blocks=200)
    one, two = twins.add(), twins.add()
    twins.step((one, 5), (two, 40))
    three = twins.fork(two)
    twins.step((three, 1), (one, 60), (two, 1))
    twins.step((three, 33), (one, 1), (two, 32))
    twins.step((three, 1), (one, 1), (two, 1))
