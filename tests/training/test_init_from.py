"""Runs that start from another model: reused weights, new parameters, errors, and low-rank adaptation."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import InitConfig, LoraConfig, MaskedConfig, Run, SpansConfig, TokenizerConfig
from glassformer.config.transformer import SequenceHead, Stack, TransformerConfig
from glassformer.tasks.reporting import Outcome
from glassformer.tasks.task import trainable_task
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from runs import ENCODER, MODEL, Recording, label_run, text_run_of, tiny_run, write_documents, write_text


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("masked")
    return api.train(text_run_of(folder, MaskedConfig()), folder / "run")


def tuned(folder: Path, start: Path, **changes: object) -> Run:
    run = label_run(folder, model=replace(ENCODER, d_model=64, residual_dropout=0.25))
    return replace(run, init=InitConfig(path=str(start), **changes))  # type: ignore[arg-type]


def test_fine_tuning_takes_model_and_tokenizer_and_reports_new_parts(masked: Outcome, tmp_path: Path) -> None:
    reporter = Recording()
    outcome = api.train(tuned(tmp_path, masked.folder), tmp_path / "run", reporter)
    before, after = api.load(masked.folder), api.load(outcome.folder)
    assert after.network.config.d_model == before.network.config.d_model == 16, "the architecture of the start"
    assert isinstance(after.network.config.head, SequenceHead) and after.network.config.residual_dropout == 0.25
    assert after.tokenizer.fingerprint == before.tokenizer.fingerprint
    messages = "\n".join(reporter.messages)
    assert "new: output.proj.weight, output.proj.bias" in messages and "loaded: 35 tensors" in messages
    assert set(after.classify(["the dog runs"])[0]) == {"cat", "dog"}


def test_frozen_modules_are_unchanged_and_the_rest_learns(masked: Outcome, tmp_path: Path) -> None:
    frozen = ("encoder.embeddings", "encoder.blocks.0.*")
    outcome = api.train(tuned(tmp_path, masked.folder, freeze=frozen), tmp_path / "run")
    before, after = (load_file(folder / "model.safetensors") for folder in (masked.folder, outcome.folder))
    for name, tensor in after.items():
        stays = name.startswith(("encoder.embeddings", "encoder.blocks.0."))
        if name in before and before[name].shape == tensor.shape:
            assert torch.equal(before[name], tensor) == stays, name


def test_an_adapted_run_trains_few_parameters_resumes_and_merges(
    masked: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Recording()
    run = replace(tuned(tmp_path, masked.folder), lora=LoraConfig(rank=2, alpha=160.0))
    outcome = api.train(run, tmp_path / "run", reporter)
    assert any("layers are adapted with rank 2" in line for line in reporter.messages)
    assert any("parameters are trained" in line for line in reporter.messages)
    before, after = (load_file(folder / "model.safetensors") for folder in (masked.folder, outcome.folder))
    name = "encoder.blocks.0.self_attn.q_proj"
    assert torch.equal(before[f"{name}.weight"], after[f"{name}.weight"])
    assert after[f"{name}.lora_b"].any(), "it has learned"
    assert api.load(outcome.folder).evaluate(log=print) == outcome.reports["valid"]
    assert api.resume(outcome.folder).reports["valid"] == outcome.reports["valid"]
    again = tmp_path / "again"
    again.mkdir()
    second = replace(tuned(again, outcome.folder), train=replace(run.train, max_steps=1))
    api.train(second, again / "run")
    merged = load_file(again / "run" / "model.safetensors")[f"{name}.weight"]
    update = after[f"{name}.lora_b"] @ after[f"{name}.lora_a"] * (160.0 / 2)
    assert update.abs().max() > 0.01, "a hundred times the change of a weight per step"
    changed = merged - (after[f"{name}.weight"] + update)
    assert changed.abs().max() < 2e-4, "the adapted weights of the start are kept, except for one step"


def test_a_vocabulary_grows_and_keeps_its_old_rows(tmp_path: Path) -> None:
    first = api.train(tiny_run(write_text(tmp_path), max_steps=1), tmp_path / "first")
    run = text_run_of(tmp_path, SpansConfig(n_sentinels=4), max_steps=1)
    run = replace(run, init=InitConfig(path=str(first.folder), model="recipe"))
    reporter = Recording()
    outcome = api.train(run, tmp_path / "second", reporter)
    old, new = api.load(first.folder), api.load(outcome.folder)
    assert new.tokenizer.vocab_size == old.tokenizer.vocab_size + 4
    assert [new.tokenizer.id_to_token(i) for i in range(old.tokenizer.vocab_size)] == list(old.tokenizer.vocab)
    assert any("rows" in line for line in reporter.messages), reporter.messages


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer": TokenizerConfig(path="other")}, "differs from the tokenizer of"),
        ({"init": {"model": "recipe"}}, "no weight of .* fits"),
        ({"init": {"freeze": ("no.such",)}}, "no.such"),
        ({"lora": LoraConfig(targets=("*.no_proj",))}, "no_proj"),
        ({"init": {"path": "nowhere"}}, "no such model directory"),
    ],
)
def test_wrong_starts_are_refused(masked: Outcome, tmp_path: Path, change: dict[str, object], words: str) -> None:
    run = tuned(tmp_path, masked.folder)
    if isinstance(change.get("init"), dict):
        run = replace(run, init=replace(run.init, **change["init"]))  # type: ignore[arg-type]
    elif "tokenizer" in change:
        Tokenizer.train(["some other text"], vocab_size=0, scheme="char").save(tmp_path / "other.json")
        run = replace(run, tokenizer=TokenizerConfig(path=str(tmp_path / "other.json")))
    else:
        run = replace(run, **change)  # type: ignore[arg-type]
    if words.startswith("no weight"):
        run = replace(run, model=replace(ENCODER, encoder=Stack(2, 2, d_ff=24), d_model=8, head=SequenceHead()))
    with pytest.raises(UserError, match=words):
        api.train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_padded_vocabulary_keeps_the_embeddings(tmp_path: Path) -> None:
    run = text_run_of(tmp_path, MaskedConfig(), max_steps=2)
    first = api.train(replace(run, model=replace(run.model, vocab_size=320)), tmp_path / "first")
    reporter = Recording()
    second = api.train(tuned(tmp_path, first.folder), tmp_path / "second", reporter)
    old, new = api.load(first.folder), api.load(second.folder)
    n = old.tokenizer.vocab_size
    assert old.network.config.vocab_size == 320 > n == new.network.config.vocab_size
    assert not any("not loaded: encoder.embeddings" in line or "new: encoder" in line for line in reporter.messages), (
        reporter.messages
    )


@pytest.mark.parametrize("names", [("cat", "dog"), ("one", "two")])
def test_a_head_for_other_labels_is_new(tmp_path: Path, names: tuple[str, str]) -> None:
    first = api.train(label_run(tmp_path, max_steps=2), tmp_path / "first")
    path = Path(label_run(tmp_path).data.path or "")  # type: ignore[union-attr]
    lines = path.read_text().replace("\tcat\t", f"\t{names[0]}\t").replace("\tdog\t", f"\t{names[1]}\t")
    (tmp_path / "other.tsv").write_text(lines)
    run = label_run(tmp_path, data={"path": str(tmp_path / "other.tsv")}, max_steps=1)
    reporter = Recording()
    api.train(replace(run, init=InitConfig(path=str(first.folder))), tmp_path / "second", reporter)
    messages = "\n".join(reporter.messages)
    assert ("new: output.proj.weight, output.proj.bias" in messages) == (names == ("one", "two"))
    assert ("not loaded: output.proj.weight, output.proj.bias" in messages) == (names == ("one", "two"))


def test_an_adapted_run_with_untrained_new_parameters_is_refused(masked: Outcome, tmp_path: Path) -> None:
    run = text_run_of(tmp_path, SpansConfig(n_sentinels=4), max_steps=1)
    run = replace(run, init=InitConfig(path=str(masked.folder), model="recipe"), lora=LoraConfig(rank=2))
    with pytest.raises(UserError, match=r"would leave these new parameters untrained.*leave out"):
        api.train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_new_label_head_is_trained_fully_with_lora(masked: Outcome, tmp_path: Path) -> None:
    run = replace(tuned(tmp_path, masked.folder), lora=LoraConfig(rank=2))
    few = api.train(replace(run, train=replace(run.train, max_steps=1)), tmp_path / "few")
    many = api.train(run, tmp_path / "many")
    one, other = (load_file(outcome.folder / "model.safetensors")["output.proj.weight"] for outcome in (few, many))
    assert not torch.equal(one, other)


def test_pairs_of_texts_add_token_types_to_a_model(masked: Outcome, tmp_path: Path) -> None:
    run = tuned(tmp_path, masked.folder)
    run = replace(run, data=replace(run.data, second_field="other"))
    with pytest.raises(UserError, match=r"n_token_types: expected 2.*--model\.n-token-types 2"):
        api.train(run, tmp_path / "run")
    reporter = Recording()
    outcome = api.train(replace(run, model=replace(run.model, n_token_types=2)), tmp_path / "run", reporter)
    assert any("new: encoder.embeddings.token_types.weight" in line for line in reporter.messages), reporter.messages
    model = api.load(outcome.folder)
    one, other = model.classify([("the dog", "red tree"), ("the dog red tree", "red tree")])
    assert one != other and model.takes_pairs


def test_the_vocabulary_of_the_start_is_reported(masked: Outcome, tmp_path: Path) -> None:
    reporter = Recording()
    outcome = api.train(tuned(tmp_path, masked.folder), tmp_path / "run", reporter)
    assert not any("the text gives no" in line for line in reporter.messages)
    assert any(line.startswith("model and tokenizer from") for line in reporter.messages)
    assert api.load(outcome.folder).run.tokenizer == api.load(masked.folder).run.tokenizer


@pytest.mark.parametrize(("model", "trains_starts"), [(MODEL, True), (MODEL, False), (ENCODER, False)])
def test_a_start_token_is_recorded_only_if_it_is_trained(
    model: TransformerConfig, trains_starts: bool, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.train(["ab"], vocab_size=0, special_tokens=("[PAD]", "[BOS]", "[EOS]"))
    several = trains_starts or model is ENCODER  # a single text has no starts to train
    run = tiny_run(write_documents(tmp_path) if several else write_text(tmp_path), model=model)
    run = replace(run, objective=MaskedConfig()) if model is ENCODER else run
    found = trainable_task(run).open(run).complete(run, Tokenizers(tokenizer))
    assert found.decoder_start_id == (tokenizer.start_id if trains_starts else None)
