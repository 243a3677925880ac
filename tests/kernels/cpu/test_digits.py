"""What queries and weights of one byte cost, beside what the formats that they meet have lost already."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from kvtide_kernels.attention import SequenceSpan, seen_in_text
from kvtide_kernels.block_view import BlockView
from kvtide_kernels.codec import decode, encode
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.key_basis import fit_key_basis
from kvtide_kernels.pool import KVPool
from kvtide_kernels.reference import attend
from kvtide_sizing.formats import LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from tests.kernels.cpu.stored import FORMATS

TOKENS, GROUP, DIM = 2048, 8, 128


@dataclass
class Whole:
    """A table of all blocks in their order."""

    blocks: list[int]
    first: int = 0
    recent: list[int] = field(default_factory=list)


def likely(spread: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values with heavy tails, channels of different sizes, four that are large for every token, and
    a first token that is looked at and says nothing; scores have that standard deviation.
    """
    tails = torch.distributions.StudentT(4.0)
    size = torch.exp(torch.randn(DIM) * 0.7)
    mean = torch.zeros(DIM)
    mean[torch.randperm(DIM)[:4]] = 8 * size.mean()
    key = tails.sample((TOKENS, 1, DIM)) * size + mean
    value = tails.sample((TOKENS, 1, DIM)) + torch.randn(DIM) / 2
    value[0] /= 100
    query = tails.sample((TOKENS, GROUP, DIM)) * torch.exp(torch.randn(DIM) * 0.7)
    scores = torch.einsum("qgd,kd->qgk", query[:16], key[:, 0] - key.mean(0)) * DIM**-0.5
    return (query * spread / scores.std()).bfloat16(), key.bfloat16(), value.bfloat16()


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("INT8-INT8", 1.35),  # queries are as fine as the keys: about as much once more, of what is least
        ("INT8-INT4", 1.03),
        ("INT4-INT4", 1.03),
    ],
)
@pytest.mark.parametrize("spread", [1.5, 4.0, 8.0], ids=["flat", "peaked", "very peaked"])
@pytest.mark.slow
def test_one_byte_costs_little(name: str, allowed: float, spread: float) -> None:
    """The error against exact attention, as a multiple of what decoding alone leaves; nothing is in BF16."""
    torch.manual_seed(3)
    stored: LayerFormat = FORMATS[name]
    query, key, value = likely(spread)
    basis = fit_key_basis(
        query[:512].float(),
        key[:512].float(),
        seen_in_text(512, None, torch.device("cpu")),
        scale=DIM**-0.5,
        centred=True,
    )
    sides = [(stored.key, basis.keys(key.float())), (stored.value, value.float())]
    width = sum(side.vector_bytes(DIM) for side, _ in sides)
    layout = KvLayout(64, 64 * width, (TableLayout((0,), None),), 1)
    pool = KVPool.allocate(
        layout, [stored], num_blocks=TOKENS // 64, kv_heads=1, head_dim=DIM, device=torch.device("cpu")
    )
    tokens, decoded = torch.arange(TOKENS), []
    for arena, (side, vectors) in zip((pool.layers[0].key, pool.layers[0].value), sides, strict=True):
        view = BlockView.of(arena, side, 64, DIM)
        view.write(tokens // 64, tokens % 64, encode(side, vectors))
        decoded.append(decode(side, view.read(tokens // 64, tokens % 64), DIM))
    step = CpuAttention(pool, scale=DIM**-0.5, bases={0: basis}).plan(
        [SequenceSpan([Whole([*range(TOKENS // 64)])], TOKENS - 1, 1)]
    )
    asked = query[512:536]
    last = torch.full((len(asked),), TOKENS - 1)
    exact = attend(asked, key, value, scale=DIM**-0.5, positions=last, window=None)
    wanted = attend(basis.queries(asked.float()), *decoded, scale=DIM**-0.5, positions=last, window=None)
    got = torch.cat([step.run(0, own, key[-1:], value[-1:]) for own in asked.split(1)])
    ours, formats = ((x.double() - exact).pow(2).mean().sqrt() for x in (got, wanted.bfloat16()))
    assert ours <= allowed * formats
