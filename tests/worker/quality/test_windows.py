"""Which tokens are read and scored."""

from __future__ import annotations

import pytest

from kvtide_worker.quality.windows import TextTooShort, Window, cut, spread

TEXT = list(range(100, 200))


def scored_tokens(windows: list[Window]) -> list[int]:
    """Every token that some step predicts, in order."""
    return [window.pair(step)[1] for window in windows for step in range(window.scored)]


def test_windows_follow_one_another_behind_the_start() -> None:
    windows = cut(TEXT, [1], size=41, prefilled=11, scored=1000)
    assert [window.tokens for window in windows] == [
        (1, *range(100, 140)),
        (1, *range(140, 180)),
        (1, *range(180, 200)),
    ]
    # Of each, the start and ten tokens are prefilled, and the next is read to predict the first that is scored.
    assert scored_tokens(windows) == [*range(111, 140), *range(151, 180), *range(191, 200)]
    assert [window.scored for window in windows] == [29, 29, 9]


def test_no_more_is_read_than_is_scored() -> None:
    windows = cut(TEXT, [], size=40, prefilled=10, scored=35)
    assert sum(window.scored for window in windows) == 35
    assert windows[-1].tokens == tuple(range(140, 157))  # 10 prefilled, 1 read, 6 more of which each is scored


def test_a_rest_that_scores_nothing_is_left() -> None:
    assert [len(window.tokens) for window in cut(TEXT, [], size=90, prefilled=20, scored=1000)] == [90]


def test_a_step_past_the_end_has_no_pair() -> None:
    window = Window((5, 6, 7, 8), prefilled=2)
    assert [window.pair(step) for step in range(2)] == [(7, 8), ()]


def test_a_text_that_scores_nothing_is_refused_with_what_is_needed() -> None:
    with pytest.raises(TextTooShort, match=r"has 30 tokens.*first 64 .*66 are the least"):
        cut(list(range(30)), [1], size=512, prefilled=64, scored=100)
    assert sum(window.scored for window in cut(list(range(66)), [1], size=512, prefilled=64, scored=100)) == 2


def test_spread_windows_cover_the_text_from_end_to_end() -> None:
    windows = spread(TEXT, [1], count=4, size=41, scored=5)
    assert [window.tokens[1] for window in windows] == [100, 120, 140, 160]
    assert all(len(window.tokens) == 41 and window.scored == 5 for window in windows)
    assert windows[-1].tokens[-1] == 199


def test_a_text_shorter_than_a_spread_window_is_refused() -> None:
    with pytest.raises(TextTooShort, match="has 100 tokens, but windows of 255 are needed"):
        spread(TEXT, [1], count=4, size=256, scored=32)
