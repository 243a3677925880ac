"""Stop strings: the answer ends before the first one, and no part of one leaks first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_worker.text.stop import StopStrings


@pytest.mark.parametrize(
    ("stop", "pieces", "expected", "stopped"),
    [
        (["END"], ["text E", "ND more"], ["text ", ""], True),
        (["END"], ["text E", "N", "x"], ["text ", "", "ENx"], False),
        (["b", "ab"], ["xab"], ["x"], True),  # complete together: the longer one counts
        (["aab"], ["aa", "ab"], ["", "a"], True),
        (["\n\n"], ["one\n", "two\n", "\nthree"], ["one", "\ntwo", ""], True),
        ([], ["a", "b"], ["a", "b"], False),
    ],
)
def test_rows(stop: list[str], pieces: list[str], expected: list[str], stopped: bool) -> None:
    strings = StopStrings(stop)
    assert [strings.add(piece) for piece in pieces] == expected
    assert strings.stopped is stopped


@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("abc", max_size=5)),
)
def test_the_cuts_do_not_matter(stop: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    complete = [(at + len(s), at) for s in stop if (at := text.find(s)) >= 0]
    strings = StopStrings(stop)
    got = "".join(strings.add(piece) for piece in pieces) + strings.finish()
    assert got == (text[: min(complete)[1]] if complete else text)
    assert strings.stopped is bool(complete)


def test_text_after_the_stop_is_dropped() -> None:
    strings = StopStrings(["."])
    assert strings.add("one. two") + strings.add(" three") + strings.finish() == "one"
