"""docs/operations.md has a line for every condition and for every reason of the closed list, and for no other."""

import re
from pathlib import Path

from kvtide_operator.api.conditions import ConditionType, Reason

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"


def rows(header: str) -> list[tuple[str, ...]]:
    """The rows of the table with this header."""
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    found = []
    for line in lines[lines.index(header) + 2 :]:
        if not line.startswith("|"):
            break
        found.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
    return found


def test_every_reason_has_one_line_that_says_what_it_means_and_what_to_do() -> None:
    table = rows("| reason | what it means | what to do |")
    assert [row[0] for row in table] == [f"`{reason.value}`" for reason in Reason]
    assert all(len(row) == 3 and row[1] and row[2] for row in table)


def test_every_condition_has_a_line() -> None:
    assert [row[0] for row in rows("| condition | True | False |")] == [f"`{kind.value}`" for kind in ConditionType]


def test_no_reason_is_named_that_there_is_not() -> None:
    text = DOCS.read_text(encoding="utf-8").partition("## Conditions and reasons")[0]
    known = {reason.value for reason in Reason} | {kind.value for kind in ConditionType}
    modes_and_fields = {"Active", "Observe", "Off", "Auto", "ReplicaFailure"}
    assert set(re.findall(r"`([A-Z][A-Za-z]+)`", text)) <= known | modes_and_fields
