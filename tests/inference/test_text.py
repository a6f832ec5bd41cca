"""The text of new ids: stop texts, in every division into pieces."""

from itertools import pairwise

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
