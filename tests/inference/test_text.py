"""The text of new ids: stop texts, in every division into pieces."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.inference.text import StopWatch


@settings(max_examples=300)
@given(
    st.text("abc", max_size=14),
    st.lists(st.text("abc", max_size=4), max_size=3),
    st.lists(st.integers(0, 14), max_size=6),
)
def test_a_stop_watch_shows_the_text_before_the_first_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    watch = StopWatch(stops)
    shown = [watch.push(piece) for piece in pieces]
    stopped = watch.stopped
    found = "".join(shown) + watch.flush()
    # the stop that is complete first decides, for every way to cut the text into pieces
    begins = [text.find(stop) for stop in stops if stop and stop in text]
    assert stopped == bool(begins)
    if not begins:
        assert found == text
    else:
        assert text.startswith(found)
        ends = min(text.find(stop) + len(stop) for stop in stops if stop and stop in text)
        assert min(begins) <= len(found) < ends


@pytest.mark.parametrize("cut", range(13))
def test_a_stop_is_cut_for_every_division_into_pieces(cut: int) -> None:
    text = "aab\n\nUser: x"
    watch = StopWatch(["\nUser:"])
    assert watch.push(text[:cut]) + watch.push(text[cut:]) == "aab\n"
    assert watch.stopped and watch.push("more") == "" and watch.flush() == ""


class Plain:
    """The definition of `StopWatch`, in a form whose cost grows with the square of a stop text."""

    def __init__(self, stops: list[str]) -> None:
        self.stops, self.held, self.stopped = [stop for stop in stops if stop], "", False

    def push(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self.held + piece
        begins = [text.find(stop) for stop in self.stops if stop in text]
        begun = [n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        end = min(begins, default=len(text) - max(begun, default=0))
        self.stopped, self.held = bool(begins), "" if begins else text[end:]
        return text[:end]


@settings(max_examples=1000)
@given(
    st.lists(st.text("ab", max_size=8), max_size=20),
    st.lists(st.text("ab", max_size=9), max_size=4),
)
def test_each_piece_of_a_stop_watch_is_that_of_the_definition(pieces: list[str], stops: list[str]) -> None:
    watch, plain = StopWatch(stops), Plain(stops)
    for piece in pieces:
        assert watch.push(piece) == plain.push(piece)
        assert watch.stopped == plain.stopped
    assert watch.flush() == plain.held


class Counted(str):
    """A text that counts how often its characters are read."""

    n_read = 0

    def __getitem__(self, key: Any) -> str:
        Counted.n_read += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("stop", ["a" * 80_000, "ab" * 40_000, "aab" * 30_000, "b" + "a" * 80_000])
@pytest.mark.parametrize("text", ["a" * 999, "ab" * 500, "aab" * 333 + "b", "aaaaaaab" * 125])
def test_the_cost_of_a_stop_text_is_that_of_the_text_which_is_read(stop: str, text: str) -> None:
    """Each character is compared at most twice on average, and once more where the stop text matches further."""
    Counted.n_read, watch = 0, StopWatch([Counted(stop)])
    for number, character in enumerate(text, 1):
        watch.push(character)
        assert Counted.n_read <= 6 * number
