"""Which formats are measured, and what each is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.formats import (
    LayerFormat,
    Precision,
    choose_formats,
    layer_formats,
    precision_named,
    stored_bytes_per_token,
)
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.plan.candidates import LOSS_BOUND_PERCENT, WEIGHTS_LOSS_BOUND_PERCENT
from kvtide_sizing.shape import ModelShape

# Those that the kernels store, in the order of a table.
MEASURED = (Precision.BF16, Precision.INT8, Precision.K8V4, Precision.MIXED, Precision.INT4)

# INT4 with a scale and a zero for each so many elements, which no kernel stores: Mixed is measured in its bytes too.
_GROUP = 32
_SCALE_AND_ZERO_BYTES = 4


@dataclass(frozen=True)
class MeasuredFormat:
    """A format of all layers.

    bound_percent:  how much worse its perplexity may be
    beside:         the name of the uniform format that it should be better than
    """

    name: str
    layers: Sequence[LayerFormat]
    bound_percent: float
    beside: str | None = None

    def bytes_per_token(self, shape: ModelShape) -> int:
        """What the layers keep of one token."""
        return stored_bytes_per_token(shape, self.layers)


def precisions(names: Sequence[str]) -> list[Precision]:
    """The named ones, without BF16, which all are compared with. Raises UnsupportedPrecision for what is not stored."""
    known = {precision.value.lower(): precision.value for precision in Precision}
    wanted = [precision_named(known.get(name.lower(), name)) for name in names]
    for precision in wanted:
        if precision not in MEASURED:
            raise UnsupportedPrecision(
                f"{precision.value} has no kernels here; measured are {', '.join(each.value for each in MEASURED)}"
            )
    return [precision for precision in MEASURED if precision in wanted and precision is not Precision.BF16]


def with_weights(shape: ModelShape, stored: WeightFormat, formats: Sequence[MeasuredFormat]) -> list[MeasuredFormat]:
    """The formats of a model whose weights are stored so, to be held against BF16 of both: before them BF16 alone, to
    see what the weights cost, and each one may cost that more.
    """
    more = WEIGHTS_LOSS_BOUND_PERCENT[stored]
    alone = MeasuredFormat(f"weights {stored}", layer_formats(shape, Precision.BF16), more)
    return [
        alone,
        *(
            replace(
                each, name=f"{each.name}, weights {stored}", bound_percent=each.bound_percent + more, beside=alone.name
            )
            for each in formats
        ),
    ]


def measured_formats(shape: ModelShape, wanted: Sequence[Precision]) -> list[MeasuredFormat]:
    """Those of a model of this shape. Mixed is two where the model's sensitivity is known: in the bytes of K8V4, and in
    those of INT4 in groups of 32, to be held against INT4.
    """
    formats = []
    for precision in wanted:
        beside = Precision.K8V4.value if precision is Precision.MIXED and Precision.K8V4 in wanted else None
        formats.append(
            MeasuredFormat(precision.value, layer_formats(shape, precision), LOSS_BOUND_PERCENT[precision], beside)
        )
        if precision is Precision.MIXED and shape.sensitivity is not None:
            formats.append(
                MeasuredFormat(
                    "Mixed, 5 bits",
                    choose_formats(shape, shape.sensitivity, _grouped_bytes(shape)),
                    LOSS_BOUND_PERCENT[Precision.INT4],
                    Precision.INT4.value if Precision.INT4 in wanted else None,
                )
            )
    return formats


def _grouped_bytes(shape: ModelShape) -> int:
    """A token's: half a byte an element, and a scale and a zero for each group."""
    return sum(
        layer.kv_heads * (-(-dim // 2) + -(-dim // _GROUP) * _SCALE_AND_ZERO_BYTES)
        for layer in shape.layers
        for dim in (layer.head_dim, layer.value_dim)
    )
