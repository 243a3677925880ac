"""What this release's worker runs. Planning knows more: what is planned and not served is refused by name."""

from __future__ import annotations

from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.weights import WeightFormat

PRECISIONS = frozenset({Precision.BF16, Precision.INT8, Precision.K8V4, Precision.INT4, Precision.MIXED})
WEIGHT_FORMATS = frozenset({WeightFormat.BF16, WeightFormat.INT8})
MAX_DEVICES = 1
