"""`bos_token` is the start token of training, and no other token."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import late
from glassformer import api
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.apps.interop.tokenizer_files import trained_start, write_tokenizer
from glassformer.config.run import ClassificationConfig
from glassformer.config.transformer import SequenceHead
from glassformer.store.model_directory import read_model
from glassformer.tokenization.tokenizer import Tokenizer
from interop.checkpoints import config_of, model_directory, tiny_tokenizer
from interop.family_configs import FAMILY_CONFIGS
from tolerances import NETWORK, near

transformers = late.optional("transformers")

BOS = tiny_tokenizer().bos_id


def named(folder: Path) -> set[Any]:
    """Return the id of `bos_token` in every file that may have one."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = {tokenizer.bos_token_id, config_of(folder).get("bos_token_id")}
    if (folder / "generation_config.json").exists():
        found.add(transformers.GenerationConfig.from_pretrained(folder).bos_token_id)
    return found


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_only_a_trained_start_token_is_exported_as_bos(name: str, tmp_path: Path) -> None:
    config = FAMILY_CONFIGS[name]
    folder = model_directory(config, tmp_path / "ours")
    export(folder, tmp_path / "hf")
    is_seq2seq = config.is_encoder_decoder
    assert trained_start(read_model(folder)) == (BOS if is_seq2seq else None)
    assert named(tmp_path / "hf") == ({BOS} if is_seq2seq else {None})
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer.convert_tokens_to_ids("[BOS]") == BOS, "the vocabulary keeps the token"
    assert tokenizer.decode([BOS], skip_special_tokens=True) == ""


def test_a_decoder_with_another_start_token_has_no_bos(tmp_path: Path) -> None:
    config = replace(FAMILY_CONFIGS["Marian"], decoder_start_id=3)
    export(model_directory(config, tmp_path / "ours"), tmp_path / "hf")
    assert named(tmp_path / "hf") == {None}


def test_a_classifier_from_a_decoder_has_no_bos(tmp_path: Path) -> None:
    """The configuration keeps the start token, but the classifier does not read one."""
    config = replace(FAMILY_CONFIGS["GPT-2"], decoder_start_id=BOS, head=SequenceHead(2, pooling="last"))
    folder = model_directory(config, tmp_path / "ours", objective=ClassificationConfig())
    assert trained_start(read_model(folder)) is None


def test_an_imported_checkpoint_keeps_its_bos(tmp_path: Path) -> None:
    from interop.checkpoints import imported

    sizes = {"vocab_size": 290, "n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 4, "n_inner": 24}
    special = {"bos_token_id": BOS, "eos_token_id": 3, "pad_token_id": 0}
    both = imported(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **special)), tmp_path)
    export(both.folder, tmp_path / "again")
    assert named(tmp_path / "again") == {BOS}


def text_ids(folder: Path, text: str) -> list[int]:
    ids: list[int] = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    return ids


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
@pytest.mark.parametrize("start", [BOS, tiny_tokenizer().eos_id], ids=["a separate start token", "the end token"])
def test_a_trained_start_token_survives_export_and_import(name: str, start: int, tmp_path: Path) -> None:
    """transformers has it as `bos_token` and adds it before a text; an import gives the same ids."""
    config = replace(FAMILY_CONFIGS[name], decoder_start_id=start)
    folder = model_directory(config, tmp_path / "ours")
    export(folder, tmp_path / "hf")
    assert trained_start(read_model(folder)) == start
    assert named(tmp_path / "hf") == {start}
    ours = api.load(folder)
    assert text_ids(tmp_path / "hf", "ab") == ours.prompt_ids("ab") == [start, *ours.tokenizer.encode("ab")]
    import_model(tmp_path / "hf", tmp_path / "again", log=lambda text: None)
    again = api.load(tmp_path / "again")
    assert again.prompt_ids("ab") == ours.prompt_ids("ab") and again.prompt_ids("") == [start]
    assert again.score("ab").log_prob == near(ours.score("ab").log_prob, terms=NETWORK)


@pytest.mark.parametrize("start", [BOS, tiny_tokenizer().eos_id], ids=["a separate start token", "the end token"])
def test_an_imported_model_is_evaluated_with_the_same_start(start: int, tmp_path: Path) -> None:
    """Each document begins with the start token, before the export and after the import."""
    folder = model_directory(replace(FAMILY_CONFIGS["GPT-2"], decoder_start_id=start), tmp_path / "ours")
    export(folder, tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "again", log=lambda text: None)
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": one}) + "\n" for one in ("ab", "cde", "f")), "utf-8")
    before, after = (api.load(place).evaluate(text) for place in (folder, tmp_path / "again"))
    assert after.n_tokens == before.n_tokens
    assert after.loss == near(before.loss)


def test_decoder_start_token_id_of_a_decoder_only_model_is_ignored(tmp_path: Path) -> None:
    """transformers ignores the key for such a model: it adds no token before a prompt."""
    from interop.checkpoints import imported

    sizes = {"vocab_size": 290, "n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 4, "n_inner": 24}
    config = transformers.GPT2Config(**sizes, eos_token_id=3, bos_token_id=BOS, decoder_start_token_id=3)
    both = imported(transformers.GPT2LMHeadModel(config), tmp_path)
    model = api.load(both.folder)
    assert model.prompt_ids("ab") == model.tokenizer.encode("ab")


def test_an_imported_tokenizer_gets_the_trained_start_token(tmp_path: Path) -> None:
    """Its file adds no token before a text; after training with a start token the exported file adds it."""
    config = replace(FAMILY_CONFIGS["GPT-2"], decoder_start_id=3)
    folder = model_directory(config, tmp_path / "ours")
    rust = json.loads(tiny_tokenizer().to_json())
    rust["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    tokenizer = Tokenizer.imported(json.dumps(rust), {"bos": "[BOS]", "eos": "[EOS]"})
    assert tokenizer.frames.prompt.before == ()
    write_tokenizer(tokenizer, folder, read_model(folder).config, 24)
    assert text_ids(folder, "ab") == [3, *tokenizer.encode("ab")]


def test_a_missing_bos_survives_export_and_import(tmp_path: Path) -> None:
    export(model_directory(FAMILY_CONFIGS["GPT-2"], tmp_path / "ours"), tmp_path / "hf")
    model = import_model(tmp_path / "hf", tmp_path / "again", log=lambda text: None).run.model
    assert (model.bos_id, model.eos_id) == (None, 3)


def test_the_end_token_begins_a_text_in_llama_cpp(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    export(model_directory(FAMILY_CONFIGS["GPT-2"], tmp_path / "ours"), tmp_path / "out", "gguf")
    reader = gguf.GGUFReader(next((tmp_path / "out").glob("*.gguf")))
    fields = {name: reader.fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos")}
    assert fields == dict.fromkeys(("bos", "eos"), tiny_tokenizer().eos_id)
    assert not reader.fields["tokenizer.ggml.add_bos_token"].contents()


def test_llama_cpp_adds_the_trained_start_token(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    config = replace(FAMILY_CONFIGS["GPT-2"], decoder_start_id=BOS)
    export(model_directory(config, tmp_path / "ours"), tmp_path / "out", "gguf")
    reader = gguf.GGUFReader(next((tmp_path / "out").glob("*.gguf")))
    assert reader.fields["tokenizer.ggml.bos_token_id"].contents() == BOS
    assert reader.fields["tokenizer.ggml.add_bos_token"].contents()
