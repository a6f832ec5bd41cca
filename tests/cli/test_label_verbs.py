"""The verbs of encoders and denoisers: fill, classify, tag, embed, merge, evaluate; starting from another model."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glassformer import api, merge
from glassformer.common.errors import UserError
from glassformer.config.run import LoraConfig
from glassformer.tasks.reporting import Outcome
from runs import Tiny, label_run, pair_run
from tolerances import NETWORK, near

from .conftest import Glassformer
from .test_bad_input import require_one_sentence


@pytest.fixture(scope="module")
def models(tiny: Tiny) -> dict[str, Path]:
    """The folder of a finished tiny run of each kind."""
    return {kind: tiny(kind) for kind in ("masked", "infilling", "spans", "classes", "regression", "tags")}


def test_fill_gives_candidates_of_every_mask(glassformer: Glassformer, models: dict[str, Path]) -> None:
    printed = glassformer("fill", models["masked"], "ab [MASK] cd [MASK]", "--n", 3, "--json")
    found = json.loads(printed.out)
    assert printed.code == 0 and [len(of_mask) for of_mask in found["candidates"]] == [3, 3]
    for of_mask in found["candidates"]:
        probabilities = [candidate["probability"] for candidate in of_mask]
        assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) <= 1
        assert len({candidate["token_id"] for candidate in of_mask}) == 3
    assert "[MASK]" not in found["text"]
    shown = glassformer("fill", models["masked"], "ab [MASK]").out.splitlines()
    assert len(shown) == 2 and shown[1].startswith("  mask 1: ") and "%" in shown[1]


@pytest.mark.parametrize("kind", ["infilling", "spans"])
def test_fill_with_a_generating_model(glassformer: Glassformer, models: dict[str, Path], kind: str) -> None:
    printed = glassformer("fill", models[kind], "--beam", 2, stdin="ab [MASK] cd\nef [MASK]\n")
    assert printed.code == 0 and len(printed.out.splitlines()) == 2 and "[MASK]" not in printed.out
    if kind == "spans":
        assert printed.out.startswith("ab"), "text outside the mask is unchanged"


def test_classify_reads_a_text_a_file_and_standard_input(
    glassformer: Glassformer, models: dict[str, Path], tmp_path: Path
) -> None:
    folder = models["classes"]
    line = glassformer("classify", folder, "the dog runs").out.rstrip("\n").split("\t")
    assert line[0] in ("cat", "dog") and 0.5 <= float(line[1]) <= 1 and line[2] == "the dog runs"
    (tmp_path / "in.txt").write_text("the dog runs\nred cat\n")
    both = glassformer("classify", folder, "--input", tmp_path / "in.txt", "--n", 2)
    assert len(both.out.splitlines()) == 4 and both.out.splitlines()[0].split("\t") == line
    piped = json.loads(glassformer("classify", folder, "--json", stdin="red cat\n").out)
    assert sum(piped["classes"].values()) == pytest.approx(1)
    number = glassformer("classify", models["regression"], "the dog runs").out.split("\t")
    assert float(number[0]) == near(
        api.load(models["regression"]).classify(["the dog runs"])[0]["number"], terms=NETWORK
    )


def test_a_batch_equals_each_text_alone(models: dict[str, Path]) -> None:
    model = api.load(models["classes"])
    texts = ["the dog runs", "cat", "two small trees and the house sees the red cat and runs"]
    together = model.classify(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = model.classify([text])
        assert found == near(alone)


def test_tag_gives_every_word_its_tag(glassformer: Glassformer, models: dict[str, Path]) -> None:
    printed = glassformer("tag", models["tags"], "the dog runs").out
    rows = [line.split("\t") for line in printed.splitlines() if line]
    assert [row[0] for row in rows] == ["the", "dog", "runs"] and {row[1] for row in rows} <= {"O", "B-ANIMAL"}
    found = json.loads(glassformer("tag", models["tags"], "--json", stdin="the dog\n").out)
    assert found["words"] == ["the", "dog"] and len(found["tags"]) == len(found["probabilities"]) == 2


def test_embed_writes_vectors_and_finds_the_nearest(
    glassformer: Glassformer, models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("the dog runs\nred cat\ntwo small trees\n")
    out = tmp_path / "vectors.npy"
    done = glassformer("embed", models["classes"], "--input", tmp_path / "in.txt", "--output", out)
    vectors = np.load(out, allow_pickle=False)
    assert done.code == 0 and vectors.shape == (3, 16) and vectors.dtype == np.float32
    nearest = glassformer("embed", models["classes"], "--input", tmp_path / "in.txt", "--query", "red cat", "--n", 1)
    assert nearest.out == "1.0000\tred cat\n"
    assert glassformer("embed", models["classes"], "red cat", "--query", "red cat").out == nearest.out


def test_evaluate_prints_the_report_of_classes(glassformer: Glassformer, models: dict[str, Path]) -> None:
    printed = glassformer("evaluate", models["classes"]).out
    assert "accuracy" in printed and "precision" in printed and "calibration error" in printed
    found = json.loads(glassformer("evaluate", models["classes"], "--json").out)
    assert found["report"]["names"] == ["cat", "dog"] and len(found["report"]["matrix"]) == 2
    masked = json.loads(glassformer("evaluate", models["masked"], "--json", "--pseudo-perplexity").out)
    assert masked["pseudo_perplexity"] > 1 and 0 <= masked["masked_accuracy"] <= 100
    assert "nats per text" in printed and "n texts" in printed
    assert "perplexity" not in glassformer("evaluate", models["regression"]).out, "a density has no perplexity"
    assert glassformer("plot", "confusion", models["classes"], "--out", "c.png").out == "c.png\n"
    for kind in ("classes", "tags", "regression", "masked"):
        looked = glassformer("plot", "attention", models[kind], "--text", "the dog", "--out", f"{kind}.png")
        assert looked.code == 0 and Path(f"{kind}.png").stat().st_size > 5000


def test_train_starts_from_another_model_adapts_and_merges(
    glassformer: Glassformer, models: dict[str, Path], tmp_path: Path
) -> None:
    run = label_run(tmp_path, max_steps=4)
    recipe = tmp_path / "tune.toml"
    recipe.write_text(
        'name = "tune"\n[model]\nd_model = 16\nmax_len = 32\n[model.encoder]\nn_layers = 2\nn_heads = 2\nd_ff = 32\n'
        f'[model.head]\nkind = "sequence"\n[data]\nkind = "labels"\npath = "{run.data.path}"\n'
        '[objective]\nkind = "classification"\n[train]\nmax_steps = 4\neval_every = 2\n[lora]\nrank = 2\n'
    )
    out = tmp_path / "out"
    done = glassformer("train", recipe, "--init", models["masked"], "--out", out)
    assert done.code == 0 and "loaded: " in done.err and "adapted with rank 2" in done.err
    assert f"next    glassformer classify {out}" in done.err
    assert glassformer("merge", out, "--out", tmp_path / "plain").code == 0
    assert merge(out, tmp_path / "merged") > 0
    one, other = (api.load(folder).classify(["ab cd"])[0] for folder in (out, tmp_path / "plain"))
    assert one == near(other)
    require_one_sentence(glassformer("merge", tmp_path / "plain", "--out", tmp_path / "x"), "no adapted layers")


def test_mistakes_are_one_sentence(glassformer: Glassformer, models: dict[str, Path], tmp_path: Path) -> None:
    table = tmp_path / "t.tsv"
    table.write_text("text\tclass\nthe dog\tdog\n")
    strange = tmp_path / "strange.tsv"
    strange.write_text("text\tlabel\nthe dog\thorse\n")
    classes, masked = models["classes"], models["masked"]
    require_one_sentence(glassformer("evaluate", classes, "--data.path", table), "got text, class", "label")
    require_one_sentence(glassformer("evaluate", classes, "--data.path", strange), "horse", "cat, dog")
    require_one_sentence(glassformer("fill", masked, "no mask here"), "has no [MASK]")
    require_one_sentence(glassformer("fill", masked, stdin="a [MASK]\nb\n"), "standard input:2", "has no [MASK]")
    require_one_sentence(glassformer("fill", masked, "a [MASK]", "--n", 0), "n is 0 and must be at least 1")
    require_one_sentence(glassformer("fill", masked, "a [MASK]", "--beam", 2), "without beam search")
    require_one_sentence(glassformer("fill", models["spans"], "a [MASK]", "--n", 2), "without candidates")
    require_one_sentence(
        glassformer("fill", classes, "a [MASK]"), str(classes), "predict a label", "use it with classify"
    )
    require_one_sentence(glassformer("classify", masked, "a"), "learned to fill masks: use it with fill")
    require_one_sentence(glassformer("translate", classes, "--input", table), "use it with classify, not translate")
    require_one_sentence(
        glassformer("embed", classes, "--query", "a", "--n", 0, stdin="b\n"), "n is 0 and must be at least 1"
    )
    require_one_sentence(glassformer("embed", classes, "--output", tmp_path / "v", "--n", 2, stdin="b\n"), "--query")
    require_one_sentence(glassformer("classify", classes, "a", "--n", 2, "--json"), "--n has no effect with --json")
    require_one_sentence(glassformer("classify", classes, "a", "--n", 0), "n is 0 and must be at least 1")
    require_one_sentence(glassformer("evaluate", classes, "--beam", 2), "--beam has no effect, because no targets")
    greedy = [models["spans"], "a [MASK]", "--beam", 1, "--length-penalty", 2]
    require_one_sentence(glassformer("fill", *greedy), "--length-penalty has no effect with a beam of 1")
    require_one_sentence(glassformer("fill", masked, stdin="a [MASK]\n\nb\n"), "standard input:3", "has no [MASK]")
    require_one_sentence(glassformer("classify", models["tags"], "a"), "use it with tag")
    require_one_sentence(glassformer("tag", classes, "a"), "use it with classify")
    require_one_sentence(glassformer("generate", masked, "--prompt", "a"), "learned to fill masks")
    require_one_sentence(glassformer("classify", classes, "a", "--second", "b"), "expected one text per item, got 2")
    require_one_sentence(glassformer("embed", classes, stdin="a\n"), "--output", "--query")
    require_one_sentence(glassformer("fill", masked, stdin="\n"), "no text given")
    pairs = api.train(pair_run(tmp_path, max_steps=1), tmp_path / "pairs")
    require_one_sentence(glassformer("embed", pairs.folder, "--query", "a", stdin="b\n"), "one stack")


@pytest.mark.parametrize("verb", ["embed", "classify", "tag"])
def test_no_texts_give_empty_results(
    glassformer: Glassformer, models: dict[str, Path], verb: str, tmp_path: Path
) -> None:
    folder = models["tags" if verb == "tag" else "classes"]
    model = api.load(folder, device="cpu")
    if verb == "embed":
        vectors = model.embed([])
        assert vectors.shape == (0, model.network.config.d_model) and vectors.dtype == np.float32
    else:
        assert getattr(model, verb)([]) == []
    texts, out = tmp_path / "texts", tmp_path / "v.npy"
    texts.write_text("")
    options = ["--output", out, "--query", "the dog"] if verb == "embed" else ["--json"]
    printed = glassformer(verb, folder, "--input", texts, *options)
    assert (printed.code, printed.out) == (0, "")
    if verb == "embed":
        assert np.load(out).shape == (0, model.network.config.d_model)


EMPTY = {
    "classify classes": "",
    "classify classes --json": '{"text": "", "classes": {}}',
    "classify regression --json": '{"text": "", "number": null}',
    "tag tags --json": '{"words": [], "tags": [], "probabilities": []}',
    "fill masked --json": '{"text": "", "candidates": []}',
    "fill spans": "",
    "generate causal --max-new-tokens 2": '{"prompt": "", "text": ""}',
}
"""Verb, model and options → the line of output for a blank line of input."""


@pytest.mark.parametrize("command", EMPTY)
def test_a_blank_line_gives_an_empty_result_at_its_place(
    glassformer: Glassformer, models: dict[str, Path], trained: Outcome, command: str, tmp_path: Path
) -> None:
    verb, kind, *options = command.split()
    folder = {**models, "causal": trained.folder}[kind]
    texts = ["the dog [MASK]", "red cat [MASK]", "ab [MASK] cd", "the cat [MASK]"]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    rows = iter(without_notes(glassformer(verb, folder, "--input", tmp_path / "in.txt", *options).out))
    wanted, given, rng = [], "", random.Random(command)
    for text in texts:
        n = rng.randrange(3)
        given += "".join(rng.choice(["\n", " \t\n"]) for _ in range(n)) + f"{text}\n"
        wanted += [EMPTY[command]] * n + [next(rows)]
    given += " \n"
    found = glassformer(verb, folder, "--input", "-", *options, stdin=given)
    assert (found.code, without_notes(found.out)) == (0, [*wanted, EMPTY[command]]), found.err


def without_notes(out: str) -> list[str]:
    """Return the lines of an output; the first JSON object may have notes about unknown text."""
    objects = [json.loads(line) if line.startswith("{") else line for line in out.splitlines()]
    plain = [{key: one[key] for key in one if key != "notes"} if isinstance(one, dict) else one for one in objects]
    return [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in plain]


def test_a_blank_line_has_no_vector(glassformer: Glassformer, models: dict[str, Path], tmp_path: Path) -> None:
    folder, out = models["classes"], tmp_path / "v.npy"
    done = glassformer("embed", folder, "--output", out, "--query", "red cat", "--n", 9, stdin="the dog\n\nred cat\n")
    vectors = np.load(out)
    alone = api.load(folder, device="cpu").embed(["the dog", "red cat"])
    assert np.isnan(vectors[1]).all() and np.array_equal(vectors[[0, 2]], alone)
    assert [line.partition("\t")[2] for line in done.out.splitlines()] == ["red cat", "the dog"]
    assert "blank lines of the input: 1; their rows are NaN" in done.err


def test_an_adapter_of_another_name_is_refused_before_training(models: dict[str, Path], tmp_path: Path) -> None:
    run = label_run(tmp_path)
    start = replace(run.init, path=str(models["classes"]))
    run = replace(run, init=start, lora=LoraConfig(targets=("*.no_such",)))
    with pytest.raises(UserError, match=r"lora\.targets: no linear layer matches \*\.no_such"):
        api.train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()
