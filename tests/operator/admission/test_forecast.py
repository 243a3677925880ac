"""A plan in a few lines, the most important first."""

from typing import Any

import pytest

from kvtide_operator.admission.forecast import forecast

Json = dict[str, Any]


def plan(alternatives: list[tuple[str, int, bool]], warnings: list[str] | None = None, held: int = 3) -> Json:
    """A plan as an earlier version wrote it: of the keys that were added since, none but `served`."""
    memory = ("deviceBytes", "weightsBytes", "activationsBytes", "overheadBytes", "reserveBytes", "kvPoolBytes")
    sizes = ("blockSizeTokens", "bytesPerBlock", "numBlocks", "poolBytes")
    return {
        "model": "llama-3.1-8b",
        "device": "l4",
        "kv": {"precision": "BF16", "capacityTokens": 24_832, "bytesPerToken": 131_072} | dict.fromkeys(sizes, 1),
        "memory": dict.fromkeys(memory, 1),
        "attention": {"queryHeads": 32, "kvHeads": 8},
        "maxContextTokens": 8192,
        "maxConcurrency": held,
        "batchLimit": 32,
        "alternatives": [
            {"choice": choice, "capacityTokens": 1, "maxConcurrency": count, "batchLimit": 1, "served": served}
            for choice, count, served in alternatives
        ],
        "warnings": warnings or [],
    }


@pytest.mark.parametrize(
    ("alternatives", "line"),
    [
        # an INT8 head of 128 takes 130 bytes where BF16 takes 256: nearly two times the sequences
        (
            # a release that served BF16 alone
            [("blockSizeTokens 16", 4, True), ("precision K8V4", 8, False), ("precision INT8", 6, False)],
            "BF16 holds 3 sequences of 8192 tokens on this device, INT8 would hold 6 (not served by this release yet)",
        ),
        ([("precision INT8", 6, True)], "BF16 holds 3 sequences of 8192 tokens on this device, INT8 would hold 6"),
        ([("precision INT8", 3, True)], "BF16 holds 3 sequences of 8192 tokens on this device"),
        ([], "BF16 holds 3 sequences of 8192 tokens on this device"),
        # FP8 is in the table of formats, but no resource can ask for it
        ([("precision FP8", 7, False)], "BF16 holds 3 sequences of 8192 tokens on this device"),
    ],
)
def test_what_it_holds_and_what_the_next_precision_would(alternatives: list[tuple[str, int, bool]], line: str) -> None:
    assert forecast(plan(alternatives))[0] == line


def test_one_sequence_is_no_plural() -> None:
    assert forecast(plan([], held=1))[0].startswith("BF16 holds 1 sequence of 8192 tokens")


def test_never_more_than_five_lines_of_256_characters() -> None:
    lines = forecast(plan([], warnings=["short", "x" * 300, "third", "fourth", "fifth"]))
    assert (
        lines[1]
        == "the KV cache holds 24832 tokens, 131072 bytes each; 32 sequences of the expected length run at once"
    )
    assert lines[2] == "short"
    assert lines[3] == "x" * 255 + "…"
    assert len(lines) == 5
