"""The verbs of encoder-decoders: train on pairs, translate, score, evaluate, average, compare; and mistakes."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.tasks.reporting import Outcome
from runs import PAIR_MODEL, Tiny, metrics, pair_run, write_pairs
from tolerances import near

from .conftest import Glassformer
from .test_bad_input import require_one_sentence

RECIPE = """
name = "pairs"
[model]
d_model = 16
max_len = 32
[model.encoder]
n_layers = 1
n_heads = 2
d_ff = 32
[model.decoder]
n_layers = 1
n_heads = 2
d_ff = 32
[model.positions]
kind = "rotary"
[tokenizer]
scheme = "word"
vocab_size = 120
[data]
kind = "pairs"
batch_tokens = 96
[objective]
kind = "seq2seq"
[train]
max_steps = 20
eval_every = 10
[generation]
kind = "beam"
max_new_tokens = 12
"""


@pytest.fixture(scope="module")
def pairs(tiny: Tiny) -> Path:
    """The folder of a finished tiny run on pairs."""
    return tiny("pairs")


def test_train_and_resume_from_a_recipe(glassformer: Glassformer, tmp_path: Path) -> None:
    recipe, out = tmp_path / "pairs.toml", tmp_path / "out"
    recipe.write_text(RECIPE)
    source, target = write_pairs(tmp_path)
    done = glassformer("train", recipe, "--data.source", source, "--data.target", target, "--out", out)
    assert done.code == 0 and "training pairs of" in done.err and f"next    glassformer translate {out}" in done.err
    assert "the run is complete" in glassformer("resume", out).err


def test_translate_prints_one_line_per_line_in_order(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    sources = ["the dog runs", "", "cat", "two small trees and the house"]
    (tmp_path / "in.txt").write_text("\n".join(sources) + "\n")
    model = api.load(pairs)
    expected = [model.translate(source) if source else "" for source in sources]
    printed = glassformer("translate", pairs, "--input", tmp_path / "in.txt")
    assert printed.code == 0 and printed.out == "".join(line + "\n" for line in expected)
    piped = glassformer("translate", pairs, stdin="\n".join(sources))
    assert piped.out == printed.out
    written = glassformer("translate", pairs, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt")
    assert written.out == "" and (tmp_path / "out.txt").read_text() == printed.out
    for place in (tmp_path, Path()):
        refused = glassformer("translate", pairs, "--input", tmp_path / "in.txt", "--output", place)
        require_one_sentence(refused, "is a folder")
    voted = glassformer("translate", pairs, pairs, "--input", tmp_path / "in.txt")
    assert voted.out == printed.out  # two copies of a model agree


def test_translate_takes_one_source_as_an_argument(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    text = "the dog runs"
    of_file = glassformer("translate", pairs, pairs, "--input", "-", stdin=f"{text}\n")
    assert of_file.out and glassformer("translate", pairs, pairs, text).out == of_file.out
    glassformer("translate", pairs, text, "--output", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == of_file.out


def test_a_source_is_encoded_once(glassformer: Glassformer, pairs: Path, encoded: list[str]) -> None:
    assert glassformer("translate", pairs, stdin="abc\nab\n").code == 0
    assert [text for text in encoded if text] == ["abc", "ab"]  # the prefix is empty


def test_translate_has_n_best_prefix_and_interactive_modes(glassformer: Glassformer, pairs: Path) -> None:
    best = glassformer("translate", pairs, "--beam", 3, "--n-best", 3, stdin="dog\ncat\n").out.splitlines()
    assert [line.split("\t")[0] for line in best] == ["1", "1", "1", "2", "2", "2"]
    scores = [float(line.split("\t")[1]) for line in best]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    forced = glassformer("translate", pairs, "--prefix", "hund und", stdin="dog\n").out
    assert forced.startswith("hund und")
    asked = glassformer("translate", pairs, stdin="dog\n" + "cat " * 40 + "\n\n", terminal=True)
    assert asked.code == 0 and "reads at most 32" in asked.err and "> " in asked.out


def test_score_gives_the_log_probability_of_each_target(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the dog\ncat\n")
    (tmp_path / "b").write_text("hund die\nkatze\n")
    printed = glassformer("score", pairs, "--source", tmp_path / "a", "--target", tmp_path / "b", "--json")
    records = [json.loads(line) for line in printed.out.splitlines()]
    assert [record["target"] for record in records] == ["hund die", "katze"]
    total = sum(record["log_prob"] for record in records)
    report = api.load(pairs).evaluate(source=tmp_path / "a", target=tmp_path / "b")
    assert -total == near(report.loss * report.n_tokens)
    assert report.n_tokens == sum(record["n_tokens"] for record in records)


def test_score_prints_one_line_per_line(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the dog\n\ncat\n red\tdog \n")
    (tmp_path / "b").write_text("hund die\nkatze\n\n hund\trot \n")
    printed = glassformer("score", pairs, "--source", tmp_path / "a", "--target", tmp_path / "b")
    lines = [line.split("\t") for line in printed.out.splitlines()]
    assert printed.code == 0 and [len(line) for line in lines] == [3] * 4
    assert lines[2][1:] == ["1", ""] and float(lines[2][0]) < 0, "an empty target has only its end token"
    model = api.load(pairs)
    assert model.score(["cat "], [" katze"]) == model.score(["cat"], ["katze"]), "training removes outer space"
    with pytest.raises(UserError, match="scores a target given its source: give both"):
        model.score("cat")


def test_evaluate_reports_skipped_pairs(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the dog\n\ncat\n")
    (tmp_path / "b").write_text("hund die\nkatze\nkatze\n")
    files = ["--data.source", tmp_path / "a", "--data.target", tmp_path / "b"]
    for verb in ("evaluate", "compare"):
        messages = glassformer(verb, pairs, *files).err
        assert messages.count("1 pair has an empty side and is skipped (the first: line 2 of") == 1
    with pytest.warns(UserWarning, match="1 pair has an empty side"):
        api.load(pairs).scores(source=tmp_path / "a", target=tmp_path / "b")


def test_too_long_pairs_are_skipped_by_loss_and_scores(glassformer: Glassformer, tmp_path: Path) -> None:
    run = pair_run(tmp_path, model=replace(PAIR_MODEL, max_len=6, source_max_len=5), max_steps=2)
    outcome = api.train(run, tmp_path / "run")
    done = glassformer("evaluate", outcome.folder, "--json")
    assert json.loads(done.out)["loss"] == outcome.reports["valid"].loss
    assert done.code == 0 and done.err.count("validation pairs are longer") + done.err.count("pairs are longer") == 1
    table = glassformer("compare", outcome.folder)
    assert table.code == 0 and "pairs are longer than the model's 5 source" in table.err


def test_evaluate_reports_changed_data(glassformer: Glassformer, tmp_path: Path) -> None:
    outcome = api.train(pair_run(tmp_path, max_steps=2), tmp_path / "run")
    assert "no longer" not in glassformer("evaluate", outcome.folder, "--loss-only").err
    with (tmp_path / "valid.en").open("a") as source, (tmp_path / "valid.de").open("a") as target:
        source.write("dog\n")
        target.write("hund\n")
    assert "has changed since pairs was trained on it" in glassformer("evaluate", outcome.folder, "--loss-only").err


def test_a_missing_scores_package_suggests_loss_only(
    glassformer: Glassformer, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    require_one_sentence(glassformer("evaluate", pairs), "glassformer[eval]", "--loss-only")
    assert glassformer("evaluate", pairs, "--loss-only").code == 0
    require_one_sentence(glassformer("compare", pairs), "glassformer[eval]")


def test_options_of_a_search_without_effect_are_refused(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("the dog\n")
    translate = ["translate", pairs, "--input", tmp_path / "in", "--beam", 1]
    for option in (["--length-penalty", 2], ["--early-stopping", "never"]):
        require_one_sentence(glassformer(*translate, *option), f"{option[0]} has no effect with a beam of 1")
    require_one_sentence(glassformer("evaluate", pairs, "--beam", 1, "--length-penalty", 2), "no effect")
    require_one_sentence(glassformer("evaluate", pairs, "--loss-only", "--beam", 2), "--beam has no effect")


def test_evaluate_prints_the_loss_and_the_scores(glassformer: Glassformer, pairs: Path) -> None:
    found = json.loads(glassformer("evaluate", pairs, "--beam", 1, "--json").out)
    assert found["loss"] == metrics(pairs)[-1]["eval/valid_loss"]
    assert {"bleu", "bleu_signature", "chrf", "bleu_tok_lc", "exact_match", "smoothed_loss"} <= set(found)
    alone = json.loads(glassformer("evaluate", pairs, "--loss-only", "--json").out)
    assert "bleu" not in alone and alone["loss"] == found["loss"]
    assert "nats per token" in glassformer("evaluate", pairs, "--loss-only").out


def test_average_takes_the_checkpoints_of_a_run(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    done = glassformer("average", pairs, "--out", tmp_path / "mean")
    assert done.code == 0 and "step-10, step-20" in done.out
    folders = [pairs / "checkpoints" / f"step-{step}" for step in (10, 20)]
    glassformer("average", *folders, "--out", tmp_path / "same")
    first, second = (tmp_path / name / "model.safetensors" for name in ("mean", "same"))
    assert first.read_bytes() == second.read_bytes()
    assert api.load(tmp_path / "mean").translate("the dog")
    require_one_sentence(glassformer("average", pairs, "--out", tmp_path / "mean"), "already exists")
    require_one_sentence(glassformer("average", folders[0], "--out", tmp_path / "x"), "at least two models")
    of_last = f"at least two models, got only {folders[1]}"
    require_one_sentence(glassformer("average", pairs, "--last", 1, "--out", tmp_path / "x"), of_last)
    require_one_sentence(
        glassformer("average", pairs, "--last", -1, "--out", tmp_path / "x"),
        "--last: expected at least 0, got -1",
    )


def test_compare_prints_one_line_per_model(glassformer: Glassformer, pairs: Path) -> None:
    second = pairs / "checkpoints" / "step-10"
    printed = glassformer("compare", pairs, second, "--score", "chrf")
    lines = printed.out.splitlines()
    assert printed.code == 0 and len(lines) == 3 and "chrf" in lines[0] and "Transformer 1+1 × 16" in lines[1]
    row = json.loads(glassformer("compare", pairs, "--json").out)
    assert row["n_parameters"] == api.load(pairs).network.n_parameters() and row["train_tokens"] > 0
    require_one_sentence(glassformer("compare", pairs, "--score", "wer"), "no score 'wer'", "bleu")


def test_compare_distinguishes_models_with_the_same_name(
    glassformer: Glassformer, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pairs)
    assert "run " in glassformer("compare", ".", "--beam", 1).out, "a folder's own name, not a dot"
    twice = glassformer("compare", ".", pairs, "--beam", 1).out.splitlines()
    assert twice[1].startswith(". ") and twice[2].startswith(f"{pairs} ")


def test_data_reports_on_pairs_before_anything_is_trained(glassformer: Glassformer, tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path)
    shown = glassformer("data", source, target)
    assert shown.code == 0 and "for training" in shown.out
    found = json.loads(glassformer("data", "reverse-transformer", "--json").out)
    assert (found["n_train"], found["n_valid"]) == (17349, 552)
    require_one_sentence(glassformer("data", "--source", source), "source and target")


def test_wrong_kinds_of_models_are_one_sentence(glassformer: Glassformer, pairs: Path, trained: Outcome) -> None:
    require_one_sentence(glassformer("translate", trained.folder, stdin="a\n"), "use it with generate, not translate")
    require_one_sentence(glassformer("generate", pairs, "--prompt", "a"), "use it with translate")
    require_one_sentence(
        glassformer("evaluate", trained.folder, "--data.source", "a", "--data.target", "b"), "no source"
    )
    require_one_sentence(glassformer("translate", stdin="a\n"), "at least one model directory")


def test_an_ensemble_refuses_different_tokenizers(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    other = replace(pair_run(tmp_path), model=PAIR_MODEL)
    other = replace(other, tokenizer=replace(other.tokenizer, vocab_size=60))
    api.train(other, tmp_path / "other")
    require_one_sentence(glassformer("translate", pairs, tmp_path / "other", stdin="dog\n"), "cannot form an ensemble")


def test_bad_pairs_are_one_sentence(glassformer: Glassformer, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("dog\ncat\n")
    (tmp_path / "b").write_text("hund\n")
    (tmp_path / "long").write_text("dog " * 50 + "\ncat\n")
    recipe = tmp_path / "pairs.toml"
    recipe.write_text(RECIPE)
    uneven = ["--data.source", tmp_path / "a", "--data.target", tmp_path / "b"]
    require_one_sentence(glassformer("train", recipe, *uneven), "2", "1", "lines")
    require_one_sentence(glassformer("evaluate", pairs, *uneven), "lines")
    require_one_sentence(glassformer("train", recipe, *uneven[:2]), "target", "missing")
    require_one_sentence(glassformer("train", recipe), "no pairs are given")
    require_one_sentence(glassformer("score", pairs, "--source", tmp_path / "a"), "target", "missing")
    require_one_sentence(glassformer("score", pairs, "--target", tmp_path / "a"), "source", "missing")
    too_long = glassformer("translate", pairs, "--input", tmp_path / "long")
    require_one_sentence(too_long, f"{tmp_path / 'long'}:1: ", "reads at most 32")
    refused = glassformer("evaluate", pairs, "--data.source", tmp_path / "long", "--data.target", tmp_path / "a")
    require_one_sentence(refused, "1 of the 2 pairs are longer than")


@pytest.mark.parametrize(
    ("result", "data", "words"),
    [
        ('metric = "wer"', "", "result.metric: expected one of bleu, bleu_tok_lc, chrf, exact_match, loss, got wer"),
        ('metric = "bits_per_byte"', "", "loss, got bits_per_byte"),
        (
            'metric = "bleu"',
            'outputs = "pronunciations"',
            "result.metric: expected one of exact_match, loss, per, wer, got bleu",
        ),
        ('side = "test"', "", "result.side is test, but this data has no test part"),
    ],
)
def test_reproduce_refuses_an_unmeasurable_result_before_training(
    glassformer: Glassformer, tmp_path: Path, result: str, data: str, words: str
) -> None:
    recipe = tmp_path / "pairs.toml"
    recipe.write_text(RECIPE.replace("[data]", f"[result]\n{result}\n[data]\n{data}"))
    source, target = write_pairs(tmp_path)
    done = glassformer("reproduce", recipe, "--data.source", source, "--data.target", target, "--out", tmp_path / "out")
    require_one_sentence(done, words)
    assert not (tmp_path / "out").exists()
