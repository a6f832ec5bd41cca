"""`glassformer plot`: pictures of a trained model, from the command line."""

from pathlib import Path

from glassformer.tasks.reporting import Outcome

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
    assert glassformer("plot", "curves", trained.folder, "--out", "of/it.svg").out == "of/it.svg\n"
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
        (["curves", "."], "has no metrics.jsonl"),
        (["curves"], "give at least one run folder"),
        (["alinement"], "unknown verb `plot alinement`: expected one of alignment"),
    ):
        shown = glassformer("plot", *words)
        assert shown.code == 2 and message in shown.err and shown.err.count("\n") == 1, (words, shown.err)
    assert not list(Path().iterdir())
