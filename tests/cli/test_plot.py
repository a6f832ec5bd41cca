"""`glassformer plot`: pictures of a trained model, from the command line."""

from pathlib import Path

import pytest

from glassformer.api import train
from glassformer.tasks.reporting import Outcome
from runs import pair_run

from .conftest import Glassformer


def is_picture(path: str) -> bool:
    data = Path(path).read_bytes()
    return data.startswith(b"\x89PNG") if path.endswith(".png") else b"<svg" in data


def test_plot_draws_every_picture_of_a_language_model(glassformer: Glassformer, trained: Outcome) -> None:
    for words in (
        ["attention", trained.folder, "--text", "abc é"],
        ["positions", trained.folder],
        ["curves", trained.folder],
    ):
        shown = glassformer("plot", *words)
        assert shown.code == 0, shown.err
        name = str(words[0])
        assert shown.out == f"{name}.png, {name}.svg\n" and shown.err == ""
        assert is_picture(f"{name}.png") and is_picture(f"{name}.svg")
    for place in (trained.folder, "shakespeare-char"):
        assert glassformer("plot", "schedule", place, "--out", "of/it.svg").out == "of/it.svg\n"
        assert is_picture("of/it.svg")


def test_plot_draws_one_head_of_one_layer(glassformer: Glassformer, trained: Outcome) -> None:
    shown = glassformer(
        "plot", "attention", trained.folder, "--text", "abc", "--layer", 1, "--head", 0, "--out", "a.svg"
    )
    assert shown.code == 0, shown.err
    drawn = Path("a.svg").read_text("utf-8")  # a comment above each outline has its text
    assert "<!-- query -->" in drawn and "<!-- key -->" in drawn and "look" not in drawn
    whole = glassformer("plot", "attention", trained.folder, "--text", "abc", "--layer", 1, "--out", "b.svg")
    assert whole.code == 0 and len(Path("a.svg").read_bytes()) < len(Path("b.svg").read_bytes())
    earlier = glassformer("plot", "attention", trained.folder, "--text", "abc", "--checkpoint", 10, "--out", "c.svg")
    assert earlier.code == 0, earlier.err


def test_mistakes_are_one_sentence_and_write_nothing(glassformer: Glassformer, trained: Outcome) -> None:
    folder = trained.folder
    for words, message in (
        (["attention", folder], "has no source side: give one text (--text)"),
        (["attention", folder, "a", "--source", "a"], "has no source side: give one text (--text)"),
        (["attention", folder, "--text", "a", "--target", "a"], "has no source side: give one text (--text)"),
        (["attention", folder, "--text", "a", "--layer", "7"], "there is no layer 7: the model has 2, counted from 0"),
        (["attention", folder, "--text", "a", "--head", "-1"], "there is no head -1"),
        (["attention", folder, "--text", "a", "--stack", "cross"], "no attention from a target to a source"),
        (["attention", folder, "--text", "a b c d " * 40], "tokens and the model reads at most 32"),
        (["attention", folder, "--text", "a", "--out", "x.gif"], "expected .png or .svg, got .gif"),
        (["alignment", folder, "--source", "a"], "has no source side: give one text"),
        (["positions", folder, "--stack", "encoder"], "this model has no encoder"),
        (["positions", "nowhere"], "no such model directory: nowhere"),
        (["schedule", "shakespear"], "did you mean shakespeare-char"),
        (["curves", "."], "has no metrics.jsonl"),
        (["curves"], "give at least one run folder"),
        (["alinement"], "unknown verb `plot alinement`: expected one of alignment"),
    ):
        shown = glassformer("plot", *words)
        assert shown.code == 2 and message in shown.err and shown.err.count("\n") == 1, (words, shown.err)
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["lens", "RUN", "abc de"],
        ["lens", "RUN", "--text", "abc de", "--no-norm"],
        ["ablation", "RUN", "abc de"],
        ["attention", "RUN", "abc de"],
        ["patching", "RUN", "--clean", "abc", "--corrupted", "abd", "--answer", "a", "--wrong", "b"],
    ],
)
def test_plots_of_inner_values_are_written(glassformer: Glassformer, trained: Outcome, words: list[str]) -> None:
    shown = glassformer("plot", *(trained.folder if word == "RUN" else word for word in words))
    assert shown.code == 0, shown.err
    names = shown.out.strip().split(", ")
    assert names == [f"{words[0]}.png", f"{words[0]}.svg"]
    assert Path(names[0]).read_bytes().startswith(b"\x89PNG") and "<svg" in Path(names[1]).read_text()


def test_patching_of_each_stack_of_an_encoder_decoder(glassformer: Glassformer, tmp_path: Path) -> None:
    folder = train(pair_run(tmp_path, max_steps=1), tmp_path / "run").folder
    words = ["--clean", "red dog", "--corrupted", "red cat", "--answer", "hund", "--wrong", "katze"]
    is_source = []
    for stack in ("encoder", "decoder"):
        shown = glassformer("plot", "patching", folder, *words, "--target", "sieht", "--stack", stack, "--out", "p.svg")
        assert shown.code == 0, shown.err
        drawn = Path("p.svg").read_text("utf-8")
        assert f"patching of the {stack} -->" in drawn
        is_source.append("<!-- dog&lt;/w&gt;/cat&lt;/w&gt; -->" in drawn)
    assert is_source == [True, False], "the columns are the source or the target prefix"
    shown = glassformer("plot", "patching", folder, *words, "--stack", "cross", "--target", "sieht")
    assert shown.code == 2 and "--stack: expected one of encoder, decoder; got 'cross'" in shown.err


def test_equal_texts_cannot_be_patched(glassformer: Glassformer, trained: Outcome) -> None:
    shown = glassformer("plot", "patching", trained.folder, "--clean", "abc", "--corrupted", "abc")
    assert shown.code == 2 and "change at least one word" in shown.err and not list(Path().glob("*.png"))
