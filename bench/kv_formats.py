"""What each KV format does to a model's predictions: `python -m bench.kv_formats TEXT --calibrate ANOTHER`.

Every token's key (behind RoPE) and value goes through the format before anything attends to it, its own token included,
as in a decode. The rest is float32. Perplexity and the divergence from BF16 are of every token in windows of --tokens.

It is for formats that no kernel stores, and for what the choice among them rests on; what is served is measured by
`kvtide quality`, through the pool and the kernels.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from devcluster.model import gemma3_270m_gguf, smollm2_gguf
from kvtide_kernels.codec import decode, encode
from kvtide_kernels.hadamard import hadamard
from kvtide_kernels.key_basis import KeyBasis
from kvtide_sizing.formats import BF16, INT4, INT8, RECENT_TOKENS, LayerFormat, VectorFormat, choose_formats
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.models.sensitivity import with_measurement
from kvtide_sizing.shape import ModelShape
from kvtide_worker.engine.key_bases import fit_key_bases
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.model import load_model
from kvtide_worker.text.tokenizer import Tokenizer

MODELS = {"SmolLM2-135M-Instruct": smollm2_gguf, "Gemma 3 270M": gemma3_270m_gguf}

# Logits of a vocabulary of 262,144 that are looked at together.
ROWS = 128

# How much of a vector's range is kept.
CLIPS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.8, 0.75)

Side = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Sealed:
    """Keys per channel over blocks of so many tokens, once a block is full; until then in BF16: KIVI's way."""

    tokens: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, dim] with the full blocks quantised."""
        full = len(x) // self.tokens * self.tokens
        blocks = x[:full].unflatten(0, (-1, self.tokens)).movedim(1, -1)
        return torch.cat([asymmetric(blocks).movedim(-1, 1).flatten(0, 1), x[full:]])


def asymmetric(x: torch.Tensor) -> torch.Tensor:
    """INT4 as the codec's, without the rotation."""
    low, high = (side[..., None] for side in x.aminmax(dim=-1))
    zero, scale = low.half().float(), ((high - low) / 15).half().float()
    return ((x - zero) / scale.clamp_min(1e-8)).round().clamp(0, 15) * scale + zero


def grouped(x: torch.Tensor) -> torch.Tensor:
    """INT4, rotated, with a scale and a zero for each 32 elements: 4 bytes more for each 32."""
    return hadamard(asymmetric(hadamard(x).unflatten(-1, (-1, 32))).flatten(-2))


def rotated_int8(x: torch.Tensor) -> torch.Tensor:
    """INT8 of the Hadamard transform."""
    return hadamard(through(INT8)(hadamard(x)))


def through(stored: VectorFormat) -> Side:
    """What a format makes of vectors."""
    return lambda x: decode(stored, encode(stored, x), x.shape[-1])


def clipped(x: torch.Tensor) -> torch.Tensor:
    """INT4, rotated, with the end points of those narrowed ones that leave the smallest squared error."""
    y = hadamard(x)
    low, high = (side[..., None] for side in y.aminmax(dim=-1))
    middle, half = (low + high) / 2, (high - low) / 2
    tried = torch.stack([middle + half * ((y - middle) / half.clamp_min(1e-20)).clamp(-clip, clip) for clip in CLIPS])
    stored = asymmetric(tried)
    best = (stored - y).square().sum(-1, keepdim=True).argmin(0, keepdim=True).expand(1, *y.shape)
    return hadamard(stored.gather(0, best)[0])


@dataclass(frozen=True)
class Variant:
    """How keys and values are stored; basis: keys in the calibrated one; recent: the last tokens, which stay BF16."""

    key: Side
    value: Side
    basis: bool = False
    recent: int = 0


VARIANTS: Mapping[str, Variant] = {
    "BF16": Variant(through(BF16), through(BF16)),
    "INT8": Variant(through(INT8), through(INT8)),
    "INT8, keys rotated": Variant(rotated_int8, through(INT8)),
    "INT8, key basis": Variant(through(INT8), through(INT8), basis=True),
    "K8V4, values not rotated": Variant(through(INT8), asymmetric),
    "K8V4": Variant(through(INT8), through(INT4)),
    "K8V4, key basis": Variant(through(INT8), through(INT4), basis=True),
    "K8V4, key basis, last 32 in BF16": Variant(through(INT8), through(INT4), basis=True, recent=32),
    "INT4 not rotated": Variant(asymmetric, asymmetric),
    "INT4": Variant(through(INT4), through(INT4)),
    "INT4, groups of 32": Variant(grouped, grouped),
    "INT4, groups of 32, key basis, last 32 in BF16": Variant(grouped, grouped, basis=True, recent=32),
    "INT4, keys sealed by 64": Variant(Sealed(64), through(INT4)),
    "INT4, key basis": Variant(through(INT4), through(INT4), basis=True),
    "INT4, key basis, best clip": Variant(clipped, clipped, basis=True),
    "INT4, last 32 in BF16": Variant(through(INT4), through(INT4), recent=32),
    "INT4, key basis, last 16 in BF16": Variant(through(INT4), through(INT4), basis=True, recent=16),
    "INT4, key basis, last 32 in BF16": Variant(through(INT4), through(INT4), basis=True, recent=32),
}


# In as many bytes as INT4 in groups of 32: 5 bits an element.
MIXED = "Mixed, 5 bits"


def mixed(shape: ModelShape) -> list[Variant]:
    """Each layer's, chosen by the shape's sensitivity in the bytes of INT4 in groups of 32."""
    assert shape.sensitivity is not None
    elements = sum(layer.kv_heads * (layer.head_dim + layer.value_dim) for layer in shape.layers)
    return [
        Variant(
            through(chosen.key),
            through(chosen.value),
            basis=chosen.has_key_basis,
            recent=RECENT_TOKENS if chosen.keeps_recent else 0,
        )
        for chosen in choose_formats(shape, shape.sensitivity, elements * 5 // 8)
    ]


@dataclass
class Attention:
    """The attention of one text from its first token on."""

    config: ModelConfig
    variants: Sequence[Variant]
    bases: Mapping[int, KeyBasis] = field(default_factory=dict)

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`."""
        variant = self.variants[layer]
        if variant.basis:
            query, key = self.bases[layer].queries(query), self.bases[layer].keys(key)
        key, value = key.bfloat16().float(), value.bfloat16().float()
        stored_key, stored_value = variant.key(key), variant.value(value)
        window, position = self.config.windows[layer], torch.arange(len(key))
        behind = position[:, None] - position
        hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        exact = behind < variant.recent
        if isinstance(variant.key, Sealed):
            block = position // variant.key.tokens
            exact_keys = block[:, None] == block
        else:
            exact_keys = exact
        out = torch.empty_like(query)
        for head in range(query.shape[1]):
            own = head * key.shape[1] // query.shape[1]
            scores = torch.where(exact_keys, query[:, head] @ key[:, own].T, query[:, head] @ stored_key[:, own].T)
            weights = (scores * self.config.attention_scale).masked_fill_(hidden, -math.inf).softmax(-1)
            out[:, head] = (weights * exact) @ value[:, own] + (weights * ~exact) @ stored_value[:, own]
        return out


@dataclass
class Measured:
    """Of each predicted token: its negative log-likelihood, its divergence from BF16, and whether both think alike."""

    losses: list[torch.Tensor] = field(default_factory=list)
    divergences: list[torch.Tensor] = field(default_factory=list)
    agreed: list[torch.Tensor] = field(default_factory=list)

    def add(self, logits: torch.Tensor, exact: torch.Tensor, targets: torch.Tensor) -> None:
        """Logits [tokens, vocabulary], those of BF16, and what came next."""
        for rows in torch.arange(len(targets)).split(ROWS):
            mine, theirs = logits[rows].log_softmax(-1), exact[rows].log_softmax(-1)
            self.losses.append(-mine.gather(1, targets[rows, None]).flatten())
            self.divergences.append((theirs.exp() * (theirs - mine)).sum(-1))
            self.agreed.append((mine.argmax(-1) == theirs.argmax(-1)).float())

    def row(self, name: str, exact: "Measured") -> str:
        """A row of the table; the error is the standard one of the mean over tokens."""
        loss, more = torch.cat(self.losses), torch.cat(self.losses) - torch.cat(exact.losses)
        worse, error = 100 * math.expm1(more.mean()), 100 * more.std() / math.sqrt(len(more))
        divergence, agreed = torch.cat(self.divergences).mean(), 100 * torch.cat(self.agreed).mean()
        return f"| {name} | {loss.mean().exp():.3f} | {worse:+.2f} ± {error:.2f} | {divergence:.5f} | {agreed:.1f} |"


def measure(name: str, options: argparse.Namespace) -> None:
    """Print a model's table."""
    path = MODELS[name]()
    model = load_model(open_checkpoint(path), dtype=torch.float32, device=torch.device("cpu"))
    tokenizer = Tokenizer.load(path)
    start = tokenizer.encode("", add_special_tokens=True)

    def window(text: Path, number: int) -> torch.Tensor:
        tokens = tokenizer.encode(text.read_text(), add_special_tokens=False)
        return torch.tensor(start + tokens[number * options.tokens : (number + 1) * options.tokens])

    in_a_basis = [LayerFormat(INT8, INT8)] * model.config.num_layers
    bases = fit_key_bases(model, in_a_basis, window(options.calibrate, 0).tolist(), torch.device("cpu"))
    wanted = ["BF16", *options.only] if options.only else list(VARIANTS)
    variants = {known: [VARIANTS[known]] * model.config.num_layers for known in dict.fromkeys(wanted)}
    shape = inspect_model(path)
    if options.sensitivity is not None:
        shape = with_measurement(shape, json.loads(options.sensitivity.read_text()))
    if shape.sensitivity is not None:
        variants[MIXED] = mixed(shape)
    results = {known: Measured() for known in variants}
    for number in range(options.windows):
        tokens = window(options.text, number)
        rows, exact = torch.arange(len(tokens) - 1), None
        for known, variant in variants.items():
            attention = Attention(model.config, variant, bases)
            logits = model.forward(tokens, torch.arange(len(tokens)), attention, rows)
            exact = logits if exact is None else exact
            results[known].add(logits, exact, tokens[1:])
    print(f"\n{name}, {options.windows} windows of {options.tokens} tokens\n")
    print("| format | perplexity | % worse | KL divergence | top-1 % |\n|---|---|---|---|---|")
    for known, measured in results.items():
        print(measured.row(known, results["BF16"]), flush=True)


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="a text file that is measured on")
    parser.add_argument("--calibrate", type=Path, required=True, help="another text, for the key basis")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--sensitivity", type=Path, help="of `kvtide quality --sensitivity`, to choose Mixed by")
    parser.add_argument("--model", choices=MODELS, action="append", help="both, unless named")
    parser.add_argument("--only", choices=VARIANTS, action="append", default=[], help="all, unless named")
    options = parser.parse_args()
    for name in options.model or MODELS:
        measure(name, options)


if __name__ == "__main__":
    main()
