"""The methods of `Model`: one text or several, devices, files, its repr."""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
import late
from glassformer import api, plot
from glassformer.apps import doctor
from glassformer.common.errors import UserError
from glassformer.config.run import InfillingConfig, LoraConfig, MaskedConfig, Run, SpansConfig
from glassformer.inference.fill import Filling
from glassformer.inference.score import Score
from glassformer.model import Model
from glassformer.models.build import build_model
from glassformer.store.model_directory import StoredModel
from glassformer.training.averaging import average_directories
from runs import ENCODER, label_run, pair_run, text_run_of, tiny_run, write_documents, write_text
from tolerances import assert_close

datasets = late.module("datasets")
pandas = late.module("pandas")

ONE_STEP: dict[str, Any] = {"max_steps": 1, "eval_every": 1, "log_every": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """A model of every kind, after one step."""

    def trained(name: str, make: Callable[[Path], Run]) -> Model:
        folder = tmp_path_factory.mktemp(name)
        return api.train(make(folder), folder / "run").model

    made: dict[str, Callable[[Path], Run]] = {
        "causal": lambda folder: tiny_run(write_documents(folder), **ONE_STEP),
        "pairs": lambda folder: pair_run(folder, separate=True, **ONE_STEP),
        "masked": lambda folder: text_run_of(folder, MaskedConfig(), **ONE_STEP),
        "infilling": lambda folder: text_run_of(folder, InfillingConfig(), **ONE_STEP),
        "spans": lambda folder: text_run_of(folder, SpansConfig(), **ONE_STEP),
        "classes": lambda folder: label_run(folder, **ONE_STEP),
        "two texts": lambda folder: label_run(
            folder, model=replace(ENCODER, n_token_types=2), data={"second_field": "other"}, **ONE_STEP
        ),
        "regression": lambda folder: label_run(folder, "regression", **ONE_STEP),
        "tags": lambda folder: label_run(folder, "tags", **ONE_STEP),
    }
    found = {name: trained(name, make) for name, make in made.items()}
    start = str(found["causal"].folder)
    found["lora"] = trained("lora", lambda folder: _adapted(folder, start))
    return found


def _adapted(folder: Path, start: str) -> Run:
    run = tiny_run(write_text(folder), **ONE_STEP)
    return replace(run, init=replace(run.init, path=start), lora=LoraConfig(rank=2))


Use = Callable[[Model, Any], Any]
VERBS: list[tuple[str, str, Use, Any, Any]] = [
    ("generate", "causal", lambda model, given: model.generate(given, max_new_tokens=3), "abc", "ab"),
    ("translate", "pairs", lambda model, given: model.translate(given), "the dog", "red"),
    ("translations", "pairs", lambda model, given: model.translations(given, n_best=2), "the dog", "red"),
    ("score", "causal", lambda model, given: model.score(given), "abc", "ab"),
    ("fill", "masked", lambda model, given: model.fill(given), "abc [MASK]", "[MASK] ab"),
    ("fill", "infilling", lambda model, given: model.fill(given, max_new_tokens=4), "abc [MASK]", "[MASK] ab"),
    ("fill", "spans", lambda model, given: model.fill(given, max_new_tokens=4), "abc [MASK]", "[MASK] ab"),
    ("classify", "classes", lambda model, given: model.classify(given), "the dog", "red"),
    ("classify", "two texts", lambda model, given: model.classify(given), ("the dog", "red tree"), ("cat", "blue")),
    ("classify", "regression", lambda model, given: model.classify(given), "the dog", "red"),
    ("tag", "tags", lambda model, given: model.tag(given), ["the", "dog"], ["red"]),
    ("embed", "masked", lambda model, given: model.embed(given).round(5).tolist(), "the dog", "red"),
]


@pytest.mark.parametrize(
    ("kind", "use", "one", "other"), [verb[1:] for verb in VERBS], ids=[f"{verb[0]}-{verb[1]}" for verb in VERBS]
)
def test_one_text_gives_one_result_and_a_list_gives_a_list(
    models: dict[str, Model], kind: str, use: Use, one: Any, other: Any
) -> None:
    """For every verb and every kind of model; results of a batch equal those of each text alone."""
    model = models[kind]
    alone = [use(model, one), use(model, other)]
    together = use(model, [one, other])
    assert isinstance(together, list) and len(together) == 2
    if isinstance(alone[0], (str, Filling)):
        assert list(map(str, together)) == list(map(str, alone))
    assert type(together[0]) is type(alone[0]) and use(model, [one])[0] == alone[0]
    for wrong in (None, 5, b"abc", [None]):
        with pytest.raises(UserError, match=r"expected a (text|sentence)"):
            use(model, wrong)


def test_one_prompt_streams_texts(models: dict[str, Model]) -> None:
    model = models["causal"]
    settings: dict[str, Any] = {"max_new_tokens": 6, "temperature": 1.5, "seed": 3}
    pieces = list(model.stream("abc", **settings))
    assert all(isinstance(piece, str) for piece in pieces)
    assert "".join(pieces) == model.generate("abc", **settings)
    assert [[piece] for piece in pieces] == list(model.stream(["abc"], **settings))
    ids = model.prompt_ids("abc")
    assert list(model.stream(ids, **settings)) == pieces
    assert model.generate(ids, **settings) == model.generate(np.array(ids), **settings) == "".join(pieces)
    assert model.generate([torch.tensor(ids)], **settings) == ["".join(pieces)]
    assert list(model.stream(np.array(ids), **settings)) == list(model.stream(torch.tensor(ids), **settings)) == pieces
    assert list(model.stream([np.array(ids)], **settings)) == [[piece] for piece in pieces]
    for wrong in (None, 5, b"abc", [None], [1.5]):
        with pytest.raises(UserError, match="prompts: expected a text or a list of ids"):
            list(model.stream(wrong))  # type: ignore[call-overload]


def test_a_sentence_is_a_text_or_a_list_of_words(models: dict[str, Model]) -> None:
    model = models["tags"]
    assert model.tag("the  dog runs") == model.tag(["the", "dog", "runs"]) == model.tag([["the", "dog", "runs"]])[0]
    with pytest.raises(UserError, match="'the dog' is not one word; pass several sentences as lists of words"):
        model.tag(["the dog", "a cat"])


def test_the_vector_of_one_text_has_one_axis(models: dict[str, Model]) -> None:
    one, both = models["masked"].embed("abc"), models["masked"].embed(["abc", "ab"])
    assert one.shape == both.shape[1:] == (models["masked"].config.d_model,)  # type: ignore[union-attr]
    assert_close(one, both[0])


@pytest.mark.parametrize("given", ["abc " * 40, ["abc " * 40]], ids=["alone", "listed"])
def test_warnings_point_to_the_call(models: dict[str, Model], given: Any) -> None:
    for use in (lambda: models["masked"].embed(given), lambda: models["classes"].classify(given)):
        with pytest.warns(UserWarning, match="texts are longer than") as found:
            use()
        assert [Path(one.filename).name for one in found] == [Path(__file__).name]


def test_score_works_alike_for_every_kind_of_model(models: dict[str, Model]) -> None:
    """`score(text, source=…)` works for encoder-decoders and for causal models."""
    for kind, source, text in (("pairs", "the dog", "hund"), ("causal", "abc ", "def")):
        model = models[kind]
        found = model.score(text, source=source)
        assert isinstance(found, Score) and found == model.score(source, text)
        assert model.score([text], source=[source]) == [found]
        with pytest.raises(UserError, match="source or target, not both"):
            model.score(text, text, source=source)
        for wrong in ([source], [source, source]):
            with pytest.raises(UserError, match="one source per text"):
                model.score(text, source=wrong)  # type: ignore[call-overload]
        with pytest.raises(UserError, match="one source per text"):
            model.score([text, text, text], source=[source, source])
    with pytest.raises(UserError, match=r"give both, as score\(target, source=…\)"):
        models["pairs"].score("hund")


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("pairs", 'model.translate("…")'),
        ("masked", 'model.fill("… [MASK] …")'),
        ("classes", 'model.classify("…")'),
        ("two texts", 'model.classify(("…", "…"))'),
        ("tags", 'model.tag("…")'),
    ],
)
def test_an_error_names_the_call_that_works(models: dict[str, Model], kind: str, call: str) -> None:
    with pytest.raises(UserError) as refused:
        models[kind].generate("abc")
    assert f"not generate (in Python: {call})" in str(refused.value)


def test_fill_gives_a_text(models: dict[str, Model]) -> None:
    filling = models["masked"].fill("abc [MASK]")
    assert isinstance(filling, Filling) and str(filling) == filling.text == f"{filling}"


def test_wrong_evaluation_data_is_named(models: dict[str, Model], tmp_path: Path) -> None:
    text = write_text(tmp_path, 20)
    assert models["causal"].evaluate(str(text)) == models["causal"].evaluate(text)
    with pytest.raises(UserError, match=r"path must be a path .a str or a Path., not int"):
        models["causal"].evaluate(5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="source must be a path"):
        models["pairs"].evaluate(source=[], target="x")  # type: ignore[arg-type]


def test_wrong_settings_suggest_the_nearest_name(models: dict[str, Model]) -> None:
    with pytest.raises(UserError, match=r"GenerationConfig has no field temprature: did you mean temperature=…\?"):
        models["causal"].generate("abc", temprature=0.5)
    with pytest.raises(UserError, match="temperature must be a number, not 'high'"):
        models["causal"].generate("abc", temperature="high")


WRONG: dict[str, tuple[str, Callable[[Model], Any], str]] = {
    "rows": ("causal", lambda m: m.generate("ab", batch_size=2.5), "batch_size is 2.5 and must be an integer: it is"),
    "no rows": ("causal", lambda m: m.generate("ab", batch_size=0), "batch_size is 0 and must be at least 1: it is"),
    "a bool": ("causal", lambda m: m.generate("ab", batch_size=True), "batch_size is True and must be an integer"),
    "n": ("causal", lambda m: m.generate("ab", n="2"), "n is '2' and must be an integer: it is the number of samples"),
    "no samples": ("causal", lambda m: m.generate("ab", n=0), "n is 0 and must be at least 1: it is the number of"),
    "streams": ("causal", lambda m: list(m.stream("ab", n=1.0)), "n is 1.0 and must be an integer"),
    "sample": ("causal", lambda m: m.generate("ab", sample=0.5), "sample is 0.5 and must be an integer"),
    "negative": ("causal", lambda m: m.generate("ab", sample=-1), "sample is -1 and must not be negative"),
    "counts": ("causal", lambda m: m.generate("ab", counts=3), "counts: expected a DraftCounts, .* got 3"),
    "slide": ("causal", lambda m: m.generate("ab", slide="no"), "slide: expected True or False, got 'no'"),
    "ids": ("causal", lambda m: m.generate([[1, 2.5]]), "prompt 1 has the id 2.5, and the vocabulary has"),
    "length": ("causal", lambda m: m.generate("ab", max_new_tokens=2.5), "max_new_tokens must be an integer, not 2.5"),
    "n_best": ("pairs", lambda m: m.translations("a", n_best=1.5), "n_best is 1.5 and must be an integer"),
    "no target": ("pairs", lambda m: m.translations("a", n_best=0), "n_best is 0 and must be at least 1"),
    "prefix": ("pairs", lambda m: m.translate("a", prefix=3), "prefix: expected a text, .* got 3"),
    "beam": ("pairs", lambda m: m.translate("a", beam=True), "beam must be an integer, not True"),
    "candidates": ("masked", lambda m: m.fill("a [MASK]", n="3"), "n is '3' and must be an integer"),
    "no candidate": ("masked", lambda m: m.fill("a [MASK]", n=-1), "n is -1 and must be at least 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_of_an_argument_is_one_sentence(models: dict[str, Model], name: str) -> None:
    kind, use, sentence = WRONG[name]
    with pytest.raises(UserError, match=sentence) as refused:
        use(models[kind])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["causal", "pairs", "masked", "classes", "regression", "tags", "lora"])
def test_save_and_load_give_the_same_model(models: dict[str, Model], kind: str, tmp_path: Path) -> None:
    model = models[kind]
    with torch.no_grad():  # the weights in memory are saved, not those of the model's folder
        model = replace(model, network=_scaled(model))
    again = api.load(model.save(str(tmp_path / "new" / "saved")), device="cpu")
    tensors, loaded = model.network.state_dict(), again.network.state_dict()
    assert tensors.keys() == loaded.keys() and all(torch.equal(x, loaded[name]) for name, x in tensors.items())
    assert (again.config, again.labels, again.generation, again.step) == (
        model.config,
        model.labels,
        model.generation,
        1,
    )
    assert again.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert again.source_tokenizer.fingerprint == model.source_tokenizer.fingerprint
    use = {"causal": "generate", "lora": "generate", "pairs": "translate", "masked": "fill", "tags": "tag"}
    verb, given = use.get(kind, "classify"), "abc [MASK]"
    assert getattr(again, verb)(given) == getattr(model, verb)(given)


def _scaled(model: Model) -> Any:
    """Return a copy of a network with other weights."""
    network = copy.deepcopy(model.network)
    for parameter in network.parameters():
        parameter.mul_(1.25)
    return network


def test_save_overwrites_nothing(models: dict[str, Model], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for taken in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserError, match="exists and is not empty: name another folder"):
            models["causal"].save(taken)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert api.load(models["causal"].save(tmp_path / "empty")).config == models["causal"].config
    vote = api.ensemble([str(models["pairs"].folder), models["pairs"]])
    with pytest.raises(UserError, match="an ensemble cannot be saved as one model; save each"):
        vote.save(tmp_path / "vote")
    with pytest.raises(UserError, match="folder must be a path"):
        models["causal"].save(None)  # type: ignore[arg-type]


def test_a_model_moves_to_a_device_and_shows_its_configuration(models: dict[str, Model]) -> None:
    model = models["causal"]
    assert model.to("cpu") is model and model.device == torch.device("cpu")
    assert model.config is model.network.config
    with pytest.raises(UserError, match="device 'cuda:9' is not available"):
        model.to("cuda:9")
    meta = replace(model, network=build_model(model.config)).to("meta")
    assert {x.device.type for x in meta.network.parameters()} == {"meta"} == {meta.device.type}


def test_attributes_of_a_module_point_to_the_network(models: dict[str, Model]) -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'parameters': use model\.network\.par"):
        models["causal"].parameters()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"a Model has no attribute .generat.$"):
        models["causal"].generat  # type: ignore[attr-defined]  # noqa: B018


def test_the_repr_of_a_model_has_three_lines(models: dict[str, Model]) -> None:
    for kind, verb in (("causal", "generate"), ("pairs", "translate"), ("tags", "tag")):
        lines = repr(models[kind]).splitlines()
        assert len(lines) == 3 and max(map(len, lines)) < 200
        assert str(models[kind].folder) in lines[0] and f"model.{verb}" in lines[0]
        assert "parameters" in lines[1] and "cpu" in lines[2]


def test_the_doctor_takes_a_folder_a_model_and_modules(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folder, model and module give the same checks of one network; tests/doctor tests their results."""
    model, seen = models["causal"], []
    assert model.folder is not None
    foreign = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
    assert doctor.check_model(foreign, vocab_size=20, checks=["deterministic"]).ok
    assert doctor.check_model(foreign, checks=["deterministic"]).ok
    with pytest.raises(UserError, match="model must be a path"):
        doctor.check_model(5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no such model directory"):
        doctor.check_model("nowhere")

    def check(network: torch.nn.Module, interface: doctor.Interface, checks: Any, seed: int) -> doctor.Report:
        seen.append((network, replace(interface, fresh=None)))
        return doctor.Report((doctor.Result("causality", True, "", ""), doctor.Result("visibility", False, "", "")))

    monkeypatch.setattr("glassformer.apps.doctor.glassformer_models.check", check)
    for given in (model.network, model, model.folder, str(model.folder)):
        report = doctor.check_model(given)
        network, interface = seen[-1]
        assert interface == seen[0][1] and interface.kind == "decoder"
        tensors = model.network.state_dict()
        assert all(torch.equal(x, tensors[name]) for name, x in network.state_dict().items())
    lines = repr(report).splitlines()
    assert len(lines) == 3 and "1 passed, 1 failed" in lines[0] and lines[1] == "  failed: visibility"


def test_a_loaded_model_is_exported_with_the_weights_in_memory(
    models: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["causal"]
    seen: list[StoredModel] = []

    def write(stored: StoredModel, folder: Path, to: str, dtype: str) -> list[str]:
        seen.append(stored)
        (folder / "config.json").write_text('{"architectures": ["Written"]}')
        return ["written"]

    monkeypatch.setattr("glassformer.apps.interop.export.write_checked", write)
    with torch.no_grad():
        other = replace(model, network=_scaled(model))
    for given, name in ((str(model.folder), "folder"), (model, "model"), (other, "other")):
        assert glassformer.export(given, str(tmp_path / name)).folder == tmp_path / name
    of_folder, of_model, of_other = (stored.network.state_dict() for stored in seen)
    for name, x in of_folder.items():
        assert torch.equal(x, of_model[name]) and torch.equal(of_other[name], x * 1.25)
    assert seen[0].run == seen[1].run and seen[0].manifest == seen[1].manifest
    with pytest.raises(UserError, match="has LoRA adapters"):
        glassformer.export(models["lora"], tmp_path / "lora")
    with pytest.raises(UserError, match="step selects a checkpoint of a run folder"):
        glassformer.export(model, tmp_path / "step", step=1)
    with pytest.raises(UserError, match="model must be a path"):
        glassformer.export(5, tmp_path / "x")  # type: ignore[arg-type]


def test_folders_of_a_run_may_be_texts(models: dict[str, Model], tmp_path: Path) -> None:
    """Calls that read or write folders, other than `load`, `save` and `export`."""
    folder, out = str(models["causal"].folder), str(tmp_path / "mean")
    average_directories([folder, folder], out)
    assert api.load(out).network.state_dict().keys() == models["causal"].network.state_dict().keys()
    pytest.importorskip("matplotlib")
    assert plot.save(plot.curves(folder), str(tmp_path / "curves.svg")) == [tmp_path / "curves.svg"]


def test_an_ensemble_takes_folders(models: dict[str, Model]) -> None:
    folder = models["pairs"].folder
    assert folder is not None
    vote = glassformer.ensemble([str(folder), folder])
    assert vote.translate("the dog") == models["pairs"].translate("the dog")
    assert "an ensemble of 2 models" in repr(vote)
    with pytest.raises(UserError, match="give at least one model directory; in Python, pass a list"):
        glassformer.ensemble(str(folder))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda path: glassformer.load(None), "folder must be a path .a str or a Path., not NoneType"),
        (lambda path: glassformer.resume(5), "folder must be a path"),
        (lambda path: glassformer.merge(5, path / "x"), "folder must be a path"),
        (lambda path: glassformer.merge("nowhere", 5), "out must be a path"),
        (lambda path: glassformer.import_model("nowhere", 5), "out must be a path"),
        (lambda path: glassformer.merge("nowhere", str(path / "x")), "no such model directory: nowhere"),
        (lambda path: glassformer.resume("nowhere"), "no such run: nowhere"),
        (lambda path: glassformer.presets.preset(5), "unknown preset 5: known presets are "),
        (lambda path: glassformer.build_model("gpt-2"), "unknown preset 'gpt-2': did you mean gpt2"),
        (lambda path: glassformer.build_model(5), "config must be a TransformerConfig, or a preset such as"),  # type: ignore[call-overload]
    ],
)
def test_a_wrong_path_is_named(call: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        call(tmp_path)


def test_a_translator_is_built_once_per_device(models: dict[str, Model]) -> None:
    model = models["pairs"]
    translator = model.translator
    assert model.translator is translator and translator.model is model.network
    assert model.to("cpu").translator is not translator and model.translator.device == model.device


@pytest.mark.parametrize(
    ("kind", "name"), [("classes", "accuracy"), ("pairs", "exact_match"), ("masked", "masked_accuracy")]
)
def test_evaluate_gives_the_scores_of_the_task(models: dict[str, Model], kind: str, name: str) -> None:
    model = models[kind]
    report = model.evaluate()
    assert report.scores[name] == model.scores()[name] == report.to_dict()[name]
    assert model.evaluate(loss_only=True).scores == {}
    assert model.evaluate(loss_only=True) == report


@pytest.mark.parametrize("call", [{"layer": 1, "head": 0}, {"parts": "abc", "layer": 1, "head": 0}, {}])
def test_a_guessed_call_of_ablate_shows_the_right_one(models: dict[str, Model], call: dict[str, Any]) -> None:
    model = models["causal"]
    with pytest.raises(
        UserError, match=r"^ablate takes the names of parts, for a `with` block: with model\.ablate\("
    ) as caught:
        model.ablate(**call)
    [part] = re.findall(r"ablate\('(.*)'\)", str(caught.value))
    assert part == f"decoder.{call.get('layer', 0)}.head.0"
    whole = model.score("abc def").nats_per_token
    with model.ablate(part):
        assert model.score("abc def").nats_per_token != whole
    with pytest.raises(UserError, match=r"encoder\.0\.head\.2"):
        models["masked"].ablate(head=2)


IN_MEMORY: dict[str, tuple[list[str], list[Any]]] = {
    "causal": (["text"], [f"abc de {i} fgh" for i in range(20)]),
    "masked": (["text"], [f"abc de {i} fgh" for i in range(20)]),
    "pairs": (["source", "target"], [("the dog", "der hund"), ("red tree", "rot")] * 4),
    "classes": (["text", "label"], [("the dog", "animal"), ("red", "colour")] * 4),
    "regression": (["text", "number"], [("the dog", 1.5), ("red", -2.0)] * 4),
    "tags": (["text", "label"], [(["the", "dog"], ["D", "N"]), (["a", "cat"], ["D", "N"])]),
    "two texts": (["text", "other", "label"], [("the dog", "red", "animal"), ("red", "a cat", "colour")]),
}
"""Evaluation data by kind of model: the fields of its run, and records."""


def in_memory(model: Model, kind: str) -> tuple[list[str], list[Any]]:
    """Return the records of a kind, with labels that the model knows."""
    names, rows = IN_MEMORY[kind]
    known = dict(zip(["animal", "colour", "D", "N"], [*model.classes, *model.classes][:4], strict=False))

    def swap(value: Any) -> Any:
        return list(map(swap, value)) if isinstance(value, list) else known.get(value, value)

    return names, [row if isinstance(row, str) else tuple(map(swap, row)) for row in rows]


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_data_in_memory_is_evaluated_like_a_file(models: dict[str, Model], kind: str, tmp_path: Path) -> None:
    """Losses and scores of tuples or texts, an iterator, dictionaries, a DataFrame and a Dataset."""
    model = models[kind]
    names, rows = in_memory(model, kind)
    records = [dict(zip(names, [row] if isinstance(row, str) else row, strict=True)) for row in rows]
    path = tmp_path / "same.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    expected = model.evaluate(path)
    assert expected.n_tokens > 0
    forms: list[Any] = [records, iter(records), pandas.DataFrame(records), datasets.Dataset.from_list(records)]
    forms += [rows, iter(rows)] if len(names) < 3 else []
    for form in forms:
        assert model.evaluate(form) == expected
    assert model.scores(records) == model.scores(path)
    if kind == "pairs":
        assert model.pairs(rows) == model.pairs(path)
    if kind == "masked":
        assert model.pseudo_perplexity(rows) == model.pseudo_perplexity(path)


def test_fields_that_evaluation_data_lacks_are_named(models: dict[str, Model]) -> None:
    with pytest.raises(
        UserError,
        match=r"^record 1 of the data has no 'target': this model reads 'source' and 'target', got 'source', 'de'$",
    ):
        models["pairs"].evaluate([{"source": "a", "de": "b"}] * 2)
    with pytest.raises(
        UserError, match=r"^record 1 of the data has no 'label': this model reads 'text' and 'label', got 'text'$"
    ):
        models["classes"].evaluate(["only a text"])
    with pytest.raises(UserError, match="the data is empty"):
        models["causal"].evaluate([])


def test_models_are_compared_on_data_in_memory(models: dict[str, Model], tmp_path: Path) -> None:
    _, rows = in_memory(models["classes"], "classes")
    compared = api.compare([models["classes"], models["classes"]], path=iter(rows))
    assert [row.score for row in compared] == [models["classes"].evaluate(rows).scores["accuracy"]] * 2


def test_compare_gives_a_row_per_model(models: dict[str, Model]) -> None:
    rows = api.compare([models["classes"], models["classes"]])
    assert [row.score for row in rows] == [models["classes"].scores()["accuracy"]] * 2
    assert str(rows).startswith("model") and len(str(rows).splitlines()) == 3
    with pytest.raises(UserError, match="has no score 'bleu'"):
        api.compare([models["classes"]], score="bleu")
