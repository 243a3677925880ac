"""Quantities, by rows of Kubernetes' own documentation (concepts: resource units in Kubernetes)."""

from decimal import Decimal

import pytest

from kvtide_operator.plan.amount import amount


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("500m", Decimal("0.5")),
        ("0.1", Decimal("0.1")),
        ("1Gi", Decimal(1073741824)),
        ("128974848", Decimal(128974848)),
        ("129e6", Decimal(129000000)),
        ("129M", Decimal(129000000)),
        ("128974848000m", Decimal(128974848)),
        ("123Mi", Decimal(128974848)),
        ("1E", Decimal(10**18)),
        ("1Ei", Decimal(2**60)),
        ("100u", Decimal("0.0001")),
        (2, Decimal(2)),
        ("1gi", None),
        ("", None),
        ("abc", None),
    ],
)
def test_a_quantity_is_its_number(written: object, number: Decimal | None) -> None:
    assert amount(written) == number
