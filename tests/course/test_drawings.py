"""The drawings of the course: valid SVG in the colours of the page, and what they show is true."""

import math
import re
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from glassformer.apps.course import drawing
from glassformer.apps.course.mytransformer.bart import infill, span_corruption
from glassformer.apps.course.mytransformer.generate import beam_search, greedy
from glassformer.apps.course.mytransformer.tokenizer import learn_merges
from glassformer.apps.course.mytransformer.tune import answer_labels
from glassformer.apps.course.pictures import drawing_names
from glassformer.common.errors import UserError
from tolerances import within

SVG = "{http://www.w3.org/2000/svg}"
CHAPTERS = Path(__file__).parents[2] / "docs" / "course"


def texts(name: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(drawing(name).svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", drawing_names())
def test_a_drawing_has_a_description_and_the_colour_of_the_text(name: str) -> None:
    root = ElementTree.fromstring(drawing(name)._repr_html_())
    assert root.get("role") == "img" and len(root.get("aria-label", "")) > 50
    assert {group.get("fill") for group in root.findall(f"{SVG}g") if group.find(f"{SVG}text") is not None} == {
        "currentColor"
    }


def test_the_tree_of_merges_is_that_of_chapter_1() -> None:
    merges = learn_merges({"low␣": 5, "lower␣": 2, "newest␣": 3, "widest␣": 2}, 10)
    shown = texts("merges")
    joined = [text for text in shown if len(text) > 1]
    numbers = [int(text) for text in shown if text.isdigit()]
    assert numbers == [3, 4, 5, 7, 8, 9, 1, 2]
    assert ["".join(merges[n - 1]) for n in numbers] == joined


def test_each_step_of_the_decoder_reads_the_token_before() -> None:
    shown = texts("encoder-decoder")
    source, written = ["b", "e", "e", "end"], ["b", "e", "e", "end"]
    assert [text for text in shown if " " not in text and not text[-1].isdigit() and text not in ("c", "context")] == [
        *source,
        "start",
        *written[:-1],
        *written,
    ]


def test_the_rotated_vectors_have_the_angles_of_their_positions() -> None:
    arrows = re.findall(r'M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" marker', drawing("rotary").svg)
    angles = [math.degrees(math.atan2(y - y2, x2 - x)) for x, y, x2, y2 in (map(float, arrow) for arrow in arrows)]
    assert [text for text in texts("rotary") if " at " in text] == ["query at 2, key at 0", "query at 3, key at 1"]
    assert angles == within([60, 90, 0, 30], 0.1)


def test_the_beam_finds_what_greedy_search_misses() -> None:
    words = ["[BOS]", "[EOS]", "in", "bald", "kurzer", "naher", "wenigen"]
    rows: dict[tuple[int, ...], list[float]] = {
        (): [0, 0, 0.6, 0.4, 0, 0, 0],
        (2,): [0, 0, 0, 0, 1 / 3, 1 / 3, 1 / 3],
        (3,): [0, 1, 0, 0, 0, 0, 0],
    }

    def next_log_p(ids: list[int]) -> torch.Tensor:
        return torch.tensor(rows.get(tuple(ids[1:]), rows[3,])).log()

    shown = texts("beam")
    assert set(words) | {"0.6", "0.4", "0.6 · ⅓ = 0.2", "0.4 · 1 = 0.4"} <= set(shown)
    ids, log_p = beam_search(next_log_p, 0, 1, beam=2, max_len=5, alpha=0.0)
    assert [words[i] for i in ids] == ["bald", "[EOS]"] and round(math.exp(log_p), 6) == 0.4
    assert [words[i] for i in greedy(next_log_p, 0, 1, max_len=5)] == ["in", "kurzer", "[EOS]"]


def test_the_damaged_texts_are_those_of_chapter_10() -> None:
    words = ["we", "stay", "at", "home", "and", "read", "<0>", "<1>", "[MASK]"]
    text, spans = list(range(6)), [(1, 3), (5, 6)]
    rows = [text, *infill(text, spans, 8), *span_corruption(text, spans, 6)]
    shown = [word for word in texts("damage") if word in words]
    assert shown == [words[i] for row in rows for i in row]


def test_a_gpt_predicts_the_next_token_of_each_column() -> None:
    shown = texts("gpt")
    assert shown[:8:2] == ["the", "cat", "sat", "on"] and shown[1:8:2] == ["cat", "sat", "on", "the"]


def test_the_decoders_of_the_lineages_look_back_only() -> None:
    """Green is an encoder, which looks both ways, orange a decoder; a recurrent row passes its state to the right."""
    arrows = re.findall(r'd="M(\d+)\D.*?[ H](\d+)(?: \d+)?" (marker.*)/>', drawing("lineages").svg)
    is_two_way = ["marker-start" in markers for _, _, markers in arrows]
    assert all(float(begin) < float(end) for begin, end, _ in arrows)
    assert is_two_way == [False] * 4 + [True] * 3 + [False] * 3 + [True] * 3 + [False] * 3


def test_the_labels_of_a_conversation_are_those_of_the_workshop() -> None:
    """Start is 1, the end 2, the question 7, the answer 8 and 9, as in the chapter's example on paper."""
    ids = {"start": 1, "12+34": 7, "end": 2, "4": 8, "6": 9}
    shown = texts("answer-labels")
    text, roles = shown[:14:2], shown[1:14:2]
    pairs = list(zip(shown[14:26:2], shown[15:26:2], strict=True))
    assert [token for token, _ in pairs] == text[:-1]
    is_assistant = torch.tensor([[role == "assistant" for role in roles]])
    expected = answer_labels(torch.tensor([[ids[token] for token in text]]), is_assistant)
    assert [ids.get(label, -100) for _, label in pairs] == expected[0].tolist()


def test_grouped_heads_share_keys_and_values_with_their_neighbours() -> None:
    lines = re.findall(r"M(\d+) 71L(\d+) 129", drawing("grouped").svg)
    for four, n_kv_heads in ((lines[:4], 4), (lines[4:], 2)):
        places = [int(place) for _, place in four]
        shared = torch.tensor(sorted(set(places))).repeat_interleave(4 // n_kv_heads)
        assert places == shared.tolist() and len(set(places)) == n_kv_heads
    shown = texts("grouped")
    assert shown.count("k") == shown.count("v") == 4 + 2
    assert [text for text in shown if "vectors" in text] == ["8 vectors per token", "4 vectors per token"]


def test_the_lens_reads_between_two_additions_and_a_patch_comes_before_them() -> None:
    svg = drawing("evidence").svg
    first, second = (int(y) for y in re.findall(r'<circle cx="200" cy="(\d+)" r="8"', svg))
    [lens], [patch] = re.findall(r"M200 (\d+)H306", svg), re.findall(r"M72 (\d+)H190", svg)
    assert second < int(lens) < first < int(patch)  # the stream goes up


def test_the_numbers_of_the_mistakes_are_those_of_the_headings() -> None:
    chapter = (CHAPTERS / "12-classical-mistakes.md").read_text("utf-8")
    headings = re.findall(r"^## .+ \(([\d, ]+)\)$", chapter, re.MULTILINE)
    shown = re.findall(r"\(([\d, ]+)\)", " ".join(texts("mistakes")))
    assert sorted(shown) == sorted(headings)


def test_a_sharded_gpu_keeps_half_of_16_bytes_per_parameter() -> None:
    shown = texts("state")
    bytes_kept = [int(text) for text in shown if text.isdigit()]
    assert bytes_kept == 2 * [4, 4, 8] + 2 * [2, 2, 4]
    for row in (bytes_kept[:3], bytes_kept[6:9]):
        assert f"{sum(row)} bytes per parameter on each GPU" in shown


def test_every_chapter_has_a_drawing() -> None:
    used = {
        path.stem: re.findall(r'course\.drawing\("([\w-]+)"\)', path.read_text("utf-8"))
        for path in CHAPTERS.glob("[0-9]*.md")
    }
    assert all(used.values()) and sorted(chain.from_iterable(used.values())) == drawing_names()


def test_an_unknown_drawing_is_an_error() -> None:
    with pytest.raises(UserError, match="unknown drawing 'merge': did you mean merges"):
        drawing("merge")
