"""What rounding matrices to INT8 does to a model's predictions, alone and with the rows that they are multiplied with:
`python -m bench.weight_rounding`.

Everything else is float32. It is for what the kernels' way rests on (docs/kernels.md); what is served is measured by
`kvtide quality MODEL --weights int8`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, LlamaForCausalLM

from devcluster.model import smollm2_gguf
from kvtide_kernels.hadamard import hadamard
from kvtide_worker.quality.measure import own_text

WINDOW, AT_ONCE = 512, 2

Turn = Callable[[torch.Tensor], torch.Tensor]


def as_it_is(rows: torch.Tensor) -> torch.Tensor:
    """Nothing is done."""
    return rows


def rounded(rows: torch.Tensor, group: int | None = None) -> torch.Tensor:
    """To 127 steps each way of the largest element of a row, or of each group of a row's elements."""
    parts = rows.unflatten(-1, (-1, group or rows.shape[-1]))
    scales = parts.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 127
    steps: torch.Tensor = (parts / scales).round() * scales
    return steps.flatten(-2)


def groups_rounded(rows: torch.Tensor) -> torch.Tensor:
    """A scale for each 64 elements."""
    return rounded(rows, 64)


def rotated_rounded(rows: torch.Tensor) -> torch.Tensor:
    """Rounded in between: the transform is its own inverse."""
    return hadamard(rounded(hadamard(rows)))


# What matrices go through, and what the rows do that they are multiplied with.
WAYS: dict[str, tuple[Turn, Turn]] = {
    "weights alone": (rounded, as_it_is),
    "and rows": (rounded, rounded),
    "and rows, a scale for 64 elements": (rounded, groups_rounded),
    "rotated weights alone": (rotated_rounded, as_it_is),
    "rotated, and rows": (rotated_rounded, rotated_rounded),
}


class Subject:
    """A model, and the project's own text in windows."""

    def __init__(self, path: Path) -> None:
        self._model = LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        ids = tokenizer(own_text(), return_tensors="pt").input_ids[0]
        self.windows = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
        self._linears = [module for module in self._model.modules() if isinstance(module, torch.nn.Linear)]
        self._weights = [linear.weight.data for linear in self._linears]
        self._rows: Turn = as_it_is
        for linear in self._linears:
            linear.register_forward_pre_hook(lambda _, rows: (self._rows(rows[0]),))

    def predictions(self, matrices: Turn, rows: Turn) -> torch.Tensor:
        """Log probabilities float16 [windows, tokens - 1, vocabulary]."""
        self._rows = rows
        for linear, weight in zip(self._linears, self._weights, strict=True):
            # An embedding that is tied to the head keeps its own.
            linear.weight = torch.nn.Parameter(matrices(weight), requires_grad=False)
        with torch.inference_mode():
            return torch.cat([self._of(window) for window in self.windows.split(AT_ONCE)])

    def perplexity(self, predictions: torch.Tensor) -> float:
        """Of every token but each window's first."""
        said = predictions.gather(-1, self.windows[:, 1:, None]).float()
        return math.exp(-float(said.mean()))

    def _of(self, windows: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self._model(windows).logits[:, :-1], dim=-1).half()


def divergence(exact: torch.Tensor, predictions: torch.Tensor) -> float:
    """KL, in nats a token."""
    each = [(a.float().exp() * (a.float() - b.float())).sum(-1) for a, b in zip(exact, predictions, strict=True)]
    return float(torch.cat(each).mean())


@click.command()
def main() -> None:
    """Print a table for SmolLM2-135M-Instruct; a minute on two cores."""
    subject = Subject(smollm2_gguf())
    exact = subject.predictions(as_it_is, as_it_is)
    base = subject.perplexity(exact)
    table = Table(title=f"SmolLM2-135M-Instruct, {subject.windows.numel():,} tokens, perplexity {base:.3f}")
    for heading in ("rounded to INT8", "% worse", "KL divergence", "top-1 %"):
        table.add_column(heading, justify="right" if table.columns else "left")
    for name, (matrices, rows) in WAYS.items():
        predictions = subject.predictions(matrices, rows)
        agreed = float((predictions.argmax(-1) == exact.argmax(-1)).float().mean())
        worse = 100 * (subject.perplexity(predictions) / base - 1)
        table.add_row(name, f"{worse:+.2f}", f"{divergence(exact, predictions):.5f}", f"{100 * agreed:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
