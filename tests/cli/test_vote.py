"""Ensembles: the prediction for texts, words and numbers is the mean of the predictions of the models."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer import api
from glassformer.config.run import MaskedConfig, TokenizerConfig
from glassformer.errors import UserError
from runs import label_run, pair_run, text_run_of, write_labels
from tolerances import NETWORK, near

from .conftest import Glassformer
from .test_bad_input import require_one_sentence

TEXTS = ["the dog runs", "red cat", "two small trees and the house sees the red cat and runs"]
SEEDS = 3


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Models for each kind of label that differ in their seed; the last has a shorter context than the others."""
    found = {}
    for outputs in ("classes", "regression", "tags"):
        folder = tmp_path_factory.mktemp(outputs)
        runs = [label_run(folder, outputs, seed=seed, max_steps=4, eval_every=4) for seed in range(SEEDS)]
        runs[-1] = replace(runs[-1], model=replace(runs[-1].model, max_len=16))
        found[outputs] = [api.train(run, folder / f"run{i}").folder for i, run in enumerate(runs)]
    return found


def rows_of(printed: str) -> list[Any]:
    return [json.loads(line) for line in printed.splitlines()]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_classes_have_the_mean_of_the_probabilities(glassformer: Glassformer, members: dict[str, list[Path]]) -> None:
    folders, stdin = members["classes"], "\n".join(TEXTS)
    alone = [rows_of(glassformer("classify", folder, "--json", stdin=stdin).out) for folder in folders]
    together = rows_of(glassformer("classify", *folders, "--json", stdin=stdin).out)
    assert [row["text"] for row in together] == TEXTS
    for place, row in enumerate(together):
        expected = {name: mean([rows[place]["classes"][name] for rows in alone]) for name in ("cat", "dog")}
        assert row["classes"] == near(expected)
    label, probability = max(together[0]["classes"].items(), key=lambda item: item[1])
    assert glassformer("classify", *folders, TEXTS[0]).out == f"{label}\t{probability:.4f}\t{TEXTS[0]}\n"


def test_numbers_are_averaged(glassformer: Glassformer, members: dict[str, list[Path]]) -> None:
    folders = members["regression"]
    alone = [float(rows_of(glassformer("classify", folder, "a cat", "--json").out)[0]["number"]) for folder in folders]
    (found,) = rows_of(glassformer("classify", *folders, "a cat", "--json").out)
    assert found["number"] == near(mean(alone)) and len(set(alone)) == SEEDS


def test_tags_have_the_mean_of_the_probabilities(glassformer: Glassformer, members: dict[str, list[Path]]) -> None:
    def outside(row: dict[str, Any]) -> list[float]:
        """Return p(O) of every word: there are two tags."""
        pairs = zip(row["tags"], row["probabilities"], strict=True)
        return [p if tag == "O" else 1 - p for tag, p in pairs]

    folders, words = members["tags"], "the dog sees a red cat"
    alone = [outside(rows_of(glassformer("tag", folder, words, "--json").out)[0]) for folder in folders]
    (found,) = rows_of(glassformer("tag", *folders, words, "--json").out)
    assert outside(found) == near([mean(list(of_word)) for of_word in zip(*alone, strict=True)])
    assert min(found["probabilities"]) >= 0.5, "the tag is the one with the higher mean probability"


@pytest.mark.parametrize("outputs", ["classes", "regression", "tags"])
def test_equal_models_vote_like_one_model(members: dict[str, list[Path]], outputs: str) -> None:
    model = api.load(members[outputs][0])
    one, three = api.ensemble([model]), api.ensemble([model] * 3)
    assert one.scores() == model.scores() and one.evaluate() == model.evaluate()
    alone, voted = model.scores(), three.scores()
    assert {name: x for name, x in voted.items() if name != "report"} == near(
        {name: x for name, x in alone.items() if name != "report"}, terms=NETWORK
    )
    assert three.evaluate().loss == near(model.evaluate().loss)


def test_evaluate_measures_the_vote(glassformer: Glassformer, members: dict[str, list[Path]], tmp_path: Path) -> None:
    table = write_labels(tmp_path, 40, "others")
    texts, _, labels, _ = zip(*(line.split("\t") for line in table.read_text().splitlines()[1:]), strict=True)
    alone = [api.load(folder).classify(texts) for folder in members["classes"]]
    found = [{name: mean([rows[i][name] for rows in alone]) for name in ("cat", "dog")} for i in range(len(texts))]
    n_right = sum(row[label] > 0.5 for row, label in zip(found, labels, strict=True))
    nats = -sum(math.log(row[label]) for row, label in zip(found, labels, strict=True))
    values = json.loads(glassformer("evaluate", *members["classes"], "--data.path", table, "--json").out)
    assert values["accuracy"] == pytest.approx(100 * n_right / 40)
    assert values["loss"] == near(nats / 40)
    matrix = values["report"]["matrix"]
    assert sum(map(sum, matrix)) == 40 and matrix[0][0] + matrix[1][1] == n_right
    assert values["loss"] < mean([api.load(folder).evaluate(table).loss for folder in members["classes"]]), "Jensen"


def test_scores_of_numbers_and_tags_measure_the_vote(members: dict[str, list[Path]], tmp_path: Path) -> None:
    table = write_labels(tmp_path, 40, "others")
    columns = list(zip(*(line.split("\t") for line in table.read_text().splitlines()[1:]), strict=True))
    model = api.ensemble([api.load(folder) for folder in members["regression"]])
    errors = [
        row["number"] - float(true) for row, true in zip(model.classify(list(columns[0])), columns[3], strict=True)
    ]
    assert model.scores(table)["rmse"] == near(math.sqrt(mean([e * e for e in errors])), terms=NETWORK)
    tagger = api.ensemble([api.load(folder) for folder in members["tags"]])
    words = tmp_path / "words.conll"
    words.write_text("the\tO\ndog\tB-ANIMAL\nruns\tO\n\ntwo\tO\ncat\tB-ANIMAL\n")
    tagged = tagger.tag([["the", "dog", "runs"], ["two", "cat"]])
    right = [
        tag == true
        for row, gold in zip(tagged, [["O", "B-ANIMAL", "O"], ["O", "B-ANIMAL"]], strict=True)
        for (tag, _), true in zip(row, gold, strict=True)
    ]
    assert tagger.scores(words)["accuracy"] == pytest.approx(100 * mean([float(x) for x in right]))


def test_embed_needs_one_model(members: dict[str, list[Path]]) -> None:
    models = [api.load(folder, device="cpu") for folder in members["classes"]]
    assert models[0].embed(["a text"]).shape == (1, models[0].network.config.d_model)
    with pytest.raises(UserError, match="its models share no vector space: use one model"):
        api.ensemble(models).embed(["a text"])


def test_a_long_text_is_cut_at_the_shortest_context(members: dict[str, list[Path]]) -> None:
    models = [api.load(folder) for folder in members["classes"]]
    messages: list[str] = []
    (found,) = api.ensemble(models).classify(["the dog " * 20], log=messages.append)
    assert sum(found.values()) == pytest.approx(1) and messages == [
        "1 of 1 texts are longer than 16 tokens and are cut"
    ]


def test_models_that_cannot_vote_together_are_named(
    glassformer: Glassformer, members: dict[str, list[Path]], tmp_path: Path
) -> None:
    classes, numbers = members["classes"][0], members["regression"][0]
    run = label_run(tmp_path, max_steps=1, eval_every=1)
    table = Path(str(run.data.path))
    words = api.train(replace(run, tokenizer=TokenizerConfig(scheme="char", vocab_size=0)), tmp_path / "letters")
    table.write_text(table.read_text().replace("\tdog\t", "\tbird\t"))
    birds = api.train(run, tmp_path / "birds")
    table.write_text(table.read_text().replace("\tbird\t", "\tcat\t", 3).replace("\tbird\t", "\tdog\t", 5))
    three = api.train(run, tmp_path / "three")
    masked = api.train(text_run_of(tmp_path, MaskedConfig(), max_steps=1), tmp_path / "masked").folder
    pairs = api.train(pair_run(tmp_path, max_steps=1), tmp_path / "pairs").folder

    def refused(*folders: Path) -> Any:
        return glassformer("classify", *folders, "a dog")

    both = f"model 1 ({classes}) and model 2 ("
    require_one_sentence(refused(classes, birds.folder), both, "label 1 is 'cat' in the first and 'bird' in the second")
    require_one_sentence(refused(classes, three.folder), "label 1 is 'cat' in the first and 'bird'")
    require_one_sentence(
        refused(classes, classes, numbers), "model 3", "predict a label for a text", "predict a number"
    )
    require_one_sentence(refused(classes, words.folder), both, "they have different tokenizers")
    require_one_sentence(refused(classes, pairs), "learned to generate a target from a source: use it with translate")
    require_one_sentence(refused(masked, masked), "learned to fill masks: use it with fill, not classify")
    require_one_sentence(glassformer("evaluate", masked, masked), "an ensemble can only translate, ", "fill masks")
    require_one_sentence(glassformer("tag", classes, classes, "a dog"), "use it with classify")
    require_one_sentence(glassformer("translate", classes, classes, stdin="a\n"), "use it with classify")
    require_one_sentence(glassformer("classify", classes, classes, "a", "--input", table), "not both")
    require_one_sentence(glassformer("classify", classes, tmp_path, stdin="a\n"), str(tmp_path))
    for verb in ("classify", "tag", "evaluate"):
        require_one_sentence(glassformer(verb, stdin="a\n"), "give at least one model directory")
    with pytest.raises(UserError, match="at least one model"):
        api.ensemble([])


def test_evaluate_of_pairs_uses_all_members(glassformer: Glassformer, tmp_path: Path) -> None:
    """The loss is that of the mean probability: at most the mean of the members' losses, and equal to none of them."""
    folders = [
        api.train(pair_run(tmp_path, seed=seed, max_steps=4, eval_every=4), tmp_path / f"run{seed}").folder
        for seed in range(2)
    ]
    losses = [api.load(folder).evaluate().loss for folder in folders]
    found = json.loads(glassformer("evaluate", *folders, "--loss-only", "--json").out)
    assert found["loss"] < mean(losses) and found["loss"] not in losses
