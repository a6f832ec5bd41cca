"""Every method and every verb that reads a text counts what its tokenizer cannot represent, and gives one note."""

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer
from cli.conftest import glassformer as command  # noqa: F401, a fixture
from glassformer import api
from glassformer.apps.cli.main import VERBS
from glassformer.common.errors import Note, UserError
from glassformer.config.run import MaskedConfig, Run, TokenizerConfig
from glassformer.model import Model
from glassformer.tokenization.tokenizer import Tokenizer
from runs import conversation_run, label_run, pair_run, text_run_of, tiny_run, write_text

STRANGE = "the ЖЩ dog"
PATTERN = r"unknown to the tokenizer and (is|are) read as \[UNK\]"
CHAR = TokenizerConfig(scheme="char", vocab_size=0)


def of_characters(run: Run) -> Run:
    return replace(run, tokenizer=CHAR, source_tokenizer=None)


RUNS: dict[str, Callable[[Path], Run]] = {
    "causal": lambda folder: of_characters(tiny_run(write_text(folder), max_steps=1)),
    "masked": lambda folder: of_characters(text_run_of(folder, MaskedConfig(), max_steps=1)),
    "pairs": lambda folder: pair_run(folder, max_steps=1),
    "classes": lambda folder: label_run(folder, max_steps=1),
    "tags": lambda folder: label_run(folder, "tags", max_steps=1),
    "conversations": lambda folder: of_characters(conversation_run(folder, max_steps=1)),
}
Models = dict[str, Model]
TEXTS = [STRANGE, "a Ж", "the dog"]
PAIRS = [("two dogs", "zwei hunde"), ("ЖЩ a", "b")] * 2
CALLS: dict[str, tuple[str, Callable[[Model], Any]]] = {
    "generate": ("causal", lambda model: model.generate(TEXTS, max_new_tokens=1)),
    "stream": ("causal", lambda model: list(model.stream(TEXTS, max_new_tokens=1))),
    "continuations": ("causal", lambda model: model.continuations(TEXTS, beam=2, max_new_tokens=1)),
    "encode_prompts": ("causal", lambda model: model.encode_prompts(TEXTS)),
    "prompt_ids": ("causal", lambda model: model.prompt_ids(STRANGE)),
    "chat": ("conversations", lambda model: model.chat([STRANGE], max_new_tokens=1)),
    "encode_conversations": (
        "conversations",
        lambda model: model.encode_conversations(model.chat_settings(max_new_tokens=1)[0], [STRANGE]),
    ),
    "translate": ("pairs", lambda model: model.translate(TEXTS)),
    "translations": ("pairs", lambda model: model.translations(TEXTS)),
    "translations_of_ids": ("pairs", lambda model: model.translations_of_ids([[1, 2]], prefix="Ж")),
    "encode_source": ("pairs", lambda model: model.encode_source(STRANGE)),
    "encode_target": ("pairs", lambda model: model.encode_target(STRANGE)),
    "score": ("causal", lambda model: model.score(TEXTS)),
    "evaluate": ("causal", lambda model: model.evaluate([STRANGE * 40])),
    "scores": ("pairs", lambda model: model.scores(PAIRS)),
    "pairs": ("pairs", lambda model: model.pairs(PAIRS)),
    "pseudo_perplexity": ("masked", lambda model: model.pseudo_perplexity([STRANGE * 2])),
    "fill": ("masked", lambda model: model.fill("the Ж [MASK]")),
    "classify": ("classes", lambda model: model.classify(TEXTS)),
    "choose_labels": ("classes", lambda model: model.choose_labels(TEXTS, 0.5, model.classifier.names[0])),
    "tag": ("tags", lambda model: model.tag([["ЖЩ", "dog"]])),
    "embed": ("masked", lambda model: model.embed(TEXTS)),
    "trace": ("causal", lambda model: model.trace(STRANGE)),
    "attention": ("causal", lambda model: model.attention(STRANGE)),
    "logit_lens": ("causal", lambda model: model.logit_lens(STRANGE)),
    "logit_attribution": ("causal", lambda model: model.logit_attribution(STRANGE)),
    "strongest_texts": ("causal", lambda model: model.strongest_texts(TEXTS * 2, "decoder.0.head")),
    "text_ids": ("causal", lambda model: model.text_ids(STRANGE)),
}
"""A call of every method of `Model` that reads a text, with a text of unknown characters."""
OTHERS = {
    "inspect": "opens a page, whose panels call the other methods",
    "conversation": "reads text that another method encodes",
    **dict.fromkeys(
        ("to", "save", "text_settings", "chat_settings", "with_languages", "hooks", "ablate"), "reads no text"
    ),
    **dict.fromkeys(("require_source",), "reads no text"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    found = {}
    for name, run in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        found[name] = api.train(run(folder), folder / "run").model
    return found


def notes_of(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if issubclass(one.category, Note) and "unknown to" in str(one.message)]


def test_every_method_of_a_model_is_known_here() -> None:
    methods = {name for name in dir(Model) if not name.startswith("_") and callable(getattr(Model, name))}
    assert methods == CALLS.keys() | OTHERS.keys(), "a new method that reads a text belongs into CALLS"


@pytest.mark.parametrize("name", CALLS)
def test_every_method_that_reads_a_text_gives_one_note(name: str, models: Models) -> None:
    kind, call = CALLS[name]
    notes = notes_of(lambda: call(models[kind]))
    assert len(notes) == (2 if name == "scores" else 1), notes  # sources and targets
    assert "Ж" in notes[0] or "after '" in notes[0], "it names a place"


def test_known_text_gives_no_note(models: Models) -> None:
    assert notes_of(lambda: models["pairs"].translate("two dog")) == []
    assert notes_of(lambda: models["classes"].classify("the dog")) == []
    assert notes_of(lambda: models["tags"].tag("the dog")) == []
    assert notes_of(lambda: models["causal"].evaluate()) == []


def test_bits_per_byte_are_undefined_for_a_text_with_unknown_parts(models: Models) -> None:
    model = models["causal"]
    with pytest.warns(Note, match=PATTERN):
        report = model.evaluate(["ЖЩЮЯЖЩЮЯ" * 200 + "\n"])
    assert report.bits_per_byte is None and math.isfinite(report.loss)
    with pytest.warns(Note, match=PATTERN):
        score = model.score("dЖЩЮ")
    assert score.n_unknown == 1 and math.isnan(score.bits_per_byte)
    assert models["causal"].evaluate().bits_per_byte is not None


@pytest.mark.parametrize("scheme", ["char", "word", "whitespace", "whole_words"])
def test_the_number_of_unknown_parts_is_exact(scheme: Any) -> None:
    rng = np.random.default_rng(0)
    tokenizer = Tokenizer.train(["a b c ab ba cab"] * 3, vocab_size=0, scheme=scheme)
    for _ in range(30):
        text = " ".join("".join(rng.choice(list("abcxyé"), rng.integers(1, 5))) for _ in range(rng.integers(1, 9)))
        n = tokenizer.encode_batch([text])[0].count(tokenizer.unk_id or 0)
        assert tokenizer.n_unknown(tokenizer.encode(text)) == n
        notes = notes_of(lambda text=text: tokenizer.encode(text))
        assert [int(note.split()[0]) for note in notes] == [n] * (n > 0)


def test_a_special_token_that_is_allowed_is_not_unknown() -> None:
    tokenizer = Tokenizer.train(["abc"], vocab_size=0, scheme="char")
    assert notes_of(lambda: tokenizer.encode("a[UNK]", allow_special=["[UNK]"])) == []
    [note] = notes_of(lambda: tokenizer.encode("x[UNK]", allow_special=["[UNK]"]))
    assert note.startswith("1 part ") and "'x' at character 1" in note


def test_a_run_notes_what_its_tokenizer_cannot_represent(models: Models, tmp_path: Path) -> None:
    """A run from a model of other text, and validation text with characters that the training text lacks."""
    valid = tmp_path / "valid.txt"
    valid.write_text("the ЖЩ dog\n" * 60)
    run = RUNS["causal"](tmp_path)
    outcome = api.train(replace(run, data=replace(run.data, valid_path=str(valid))), tmp_path / "a")
    [note] = [note for note in outcome.notes if "unknown" in note]
    assert "parts of the validation text are unknown" in note and outcome.reports["valid"].bits_per_byte is None
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["notes"] == list(outcome.notes)
    for kind in ("conversations", "classes"):
        data = [(STRANGE + str(i), "xy"[i % 2]) for i in range(40)]
        if kind == "conversations":
            data = [{"prompt": one, "completion": other} for one, other in data]
        began = glassformer.train(
            data, tmp_path / kind, init=models[kind].folder, max_steps=1, eval_every=1, device="cpu"
        )
        assert len([note for note in began.notes if "unknown" in note]) == 1, began.notes


def folder_of(models: Models, kind: str) -> str:
    return str(models[kind].folder)


Words = Callable[[Models, Path], Sequence[str]]
COMMANDS: dict[str, Words] = {
    "train": lambda m, text: [
        "train",
        text,
        "--init",
        folder_of(m, "causal"),
        "--max-steps",
        "1",
        "--out",
        f"{text}.run",
    ],
    "generate": lambda m, text: ["generate", folder_of(m, "causal"), STRANGE, "--max-new-tokens", "1"],
    "translate": lambda m, text: ["translate", folder_of(m, "pairs"), STRANGE],
    "score": lambda m, text: ["score", folder_of(m, "causal"), STRANGE, "--json"],
    "fill": lambda m, text: ["fill", folder_of(m, "masked"), "Ж [MASK]", "--json"],
    "classify": lambda m, text: ["classify", folder_of(m, "classes"), STRANGE, "--json"],
    "tag": lambda m, text: ["tag", folder_of(m, "tags"), STRANGE, "--json"],
    "embed": lambda m, text: ["embed", folder_of(m, "masked"), STRANGE, "--output", f"{text}.npy"],
    "evaluate": lambda m, text: ["evaluate", folder_of(m, "causal"), "--data.path", text, "--json"],
    "compare": lambda m, text: ["compare", folder_of(m, "causal"), "--data.path", text, "--json"],
    "plot": lambda m, text: ["plot", "attention", folder_of(m, "causal"), STRANGE, "--out", f"{text}.png"],
    "tokenizer": lambda m, text: ["tokenizer", "encode", folder_of(m, "causal"), STRANGE],
    "data": lambda m, text: ["data", text, "--tokenizer", folder_of(m, "causal")],
    "chat": lambda m, text: ["chat", folder_of(m, "conversations"), STRANGE, "--max-new-tokens", "1"],
}
WITHOUT_TEXT = {
    "inspect": "its page calls the methods of the model",
    "serve": "a note would write texts of clients into the log",
    **dict.fromkeys(("demo", "reproduce", "resume", "plan", "course", "sweep"), "reads the data of a run, as train"),
    **dict.fromkeys(("checkpoint", "average", "merge", "import", "export", "doctor"), "reads no text"),
    **dict.fromkeys(("presets", "recipes"), "reads no text"),
}


def test_every_verb_is_known_here() -> None:
    assert VERBS.keys() == COMMANDS.keys() | WITHOUT_TEXT.keys(), "a new verb that reads a text belongs into COMMANDS"


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_that_reads_a_text_gives_one_note(
    verb: str,
    models: Models,
    command: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    text = tmp_path / "strange.txt"
    text.write_text(f"{STRANGE}\n" * 60)
    words = COMMANDS[verb](models, str(text))
    result = command(*words, stdin=f"{STRANGE}\n")
    assert result.code == 0, result.err
    said = result.err if verb != "data" else result.out
    n_sides = 2 if verb in ("train", "data") else 1  # training and validation text
    assert said.count("unknown to the tokenizer") == n_sides, said
    if "--json" in words:
        [notes] = [json.loads(line).get("notes", []) for line in result.out.splitlines()]
        assert any("unknown to the tokenizer" in note for note in notes)


BLANK = " \t"
REFUSED: dict[str, tuple[str, Callable[[Model, Any], Any]]] = {
    "translate": ("pairs", lambda model, text: model.translate(text)),
    "translations": ("pairs", lambda model, text: model.translations(text)),
    "encode_source": ("pairs", lambda model, text: model.encode_source(text)),
    "score": ("causal", lambda model, text: model.score(text)),
    "score with a source": ("causal", lambda model, text: model.score("the", source=text)),
    "score of a translator": ("pairs", lambda model, text: model.score("hund", source=text)),
    "classify": ("classes", lambda model, text: model.classify(text)),
    "choose_labels": ("classes", lambda model, text: model.choose_labels(text, 0.5, model.classifier.names[0])),
    "tag": ("tags", lambda model, text: model.tag(text)),
    "fill": ("masked", lambda model, text: model.fill(text)),
    "chat": ("conversations", lambda model, text: model.chat(text)),
    "trace": ("causal", lambda model, text: model.trace(text)),
    "evaluate": ("causal", lambda model, text: model.evaluate([text])),
    "pseudo_perplexity": ("masked", lambda model, text: model.pseudo_perplexity([text])),
    "strongest_texts": ("causal", lambda model, text: model.strongest_texts([text], "decoder.0.head")),
}
"""Methods that refuse a blank text. `generate` continues white space, and `embed` notes it."""


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("text", ["", BLANK])
def test_a_blank_text_gets_a_sentence_and_no_result(name: str, text: str, models: Models) -> None:
    kind, call = REFUSED[name]
    if (name, text) == ("trace", BLANK):
        pytest.skip("white space has tokens")
    with pytest.raises(UserError):
        call(models[kind], text)


def test_one_blank_text_of_several_is_named(models: Models) -> None:
    with pytest.raises(UserError, match=r"^source: text 2 of 3 is blank"):
        models["pairs"].translate(["a dog", " ", "a cat"])
    with pytest.warns(Note, match="1 of 2 texts is blank"):
        assert np.isfinite(models["masked"].embed(["the", " "])).all()


def test_an_unfinished_target_is_marked(models: Models, command: Any) -> None:  # noqa: F811
    found = models["pairs"].translations("two dog", beam=3, n_best=3, max_new_tokens=1)
    assert {one.is_finished for one in found} == {one.hypothesis.ended for one in found} and not found[0].is_finished
    words = ["--n-best", "3", "--beam", "3", "--max-new-tokens", "1"]
    lines = command("translate", folder_of(models, "pairs"), "two dog", *words).out.splitlines()
    assert [line.endswith("\tunfinished") for line in lines] == [not one.is_finished for one in found]
