import pytest

from kvtide_sizing.errors import InvalidQuantity
from kvtide_sizing.quantity import format_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40Gi", 40 * 1024**3),
        ("40GiB", 40 * 1024**3),
        ("1280Mi", 1280 * 1024**2),
        ("500M", 500_000_000),
        ("500MB", 500_000_000),
        ("1.5Gi", 3 * 1024**3 // 2),
        ("0.1Gi", 107_374_182),  # 107374182.4: a fraction of a byte is dropped
        ("2e9", 2_000_000_000),
        ("1073741824", 1024**3),
        ("64Ki", 65536),
        ("2Ti", 2 * 1024**4),
        ("8 GiB", 8 * 1024**3),
    ],
)
def test_quantities_are_read_as_kubernetes_and_people_write_them(text: str, expected: int) -> None:
    assert parse_quantity(text) == expected


@pytest.mark.parametrize("text", ["", "Gi", "40Xi", "-1Gi", "0", "0.1", "40m", "1e", "40gi", "4,5Gi", "nan", "1e999"])
def test_what_is_no_amount_of_memory_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidQuantity, match="40Gi") as refused:
        parse_quantity(text)
    assert f"'{text}'" in str(refused.value)


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (33_715_493_274, "31.4 GiB"),
        (1_406_606_376, "1.31 GiB"),
        (512 * 1024**2, "512 MiB"),
        (23_040, "22 KiB"),  # 22.5, and Python rounds to even
        (0, "0 B"),
    ],
)
def test_amounts_are_written_with_three_digits_or_so(amount: int, expected: str) -> None:
    assert format_bytes(amount) == expected
