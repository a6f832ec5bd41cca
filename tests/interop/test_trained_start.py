"""`bos_token` names the token that a model was trained to start from, and no other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from glassformer.interop.export import export  # noqa: E402
from glassformer.interop.importing import import_model  # noqa: E402
from glassformer.interop.trained_start import trained_start  # noqa: E402
from glassformer.store.model_directory import read_model  # noqa: E402
from interop.checkpoints import config_of, model_directory, tiny_tokenizer  # noqa: E402
from interop.family_configs import FAMILY_CONFIGS  # noqa: E402

BOS = tiny_tokenizer().bos_id


def named(folder: Path) -> set[Any]:
    """The id of `bos_token` in every file that may name one."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = {tokenizer.bos_token_id, config_of(folder).get("bos_token_id")}
    if (folder / "generation_config.json").exists():
        found.add(transformers.GenerationConfig.from_pretrained(folder).bos_token_id)
    return found


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_only_what_a_model_was_trained_to_start_from_goes_out_as_bos(name: str, tmp_path: Path) -> None:
    config = FAMILY_CONFIGS[name]
    folder = model_directory(config, tmp_path / "ours")
    export(folder, tmp_path / "hf")
    is_seq2seq = config.encoder is not None and config.decoder is not None
    assert trained_start(read_model(folder)) == (BOS if is_seq2seq else None)
    assert named(tmp_path / "hf") == ({BOS} if is_seq2seq else {None})
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer.convert_tokens_to_ids("[BOS]") == BOS, "the token itself stays"
    assert tokenizer.decode([BOS], skip_special_tokens=True) == ""


def test_a_decoder_that_starts_from_another_token_has_no_bos(tmp_path: Path) -> None:
    config = replace(FAMILY_CONFIGS["Marian"], decoder_start_id=3)
    export(model_directory(config, tmp_path / "ours"), tmp_path / "hf")
    assert named(tmp_path / "hf") == {None}


def test_a_checkpoint_from_elsewhere_keeps_its_own(tmp_path: Path) -> None:
    from interop.checkpoints import imported

    sizes = {"vocab_size": 290, "n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 4, "n_inner": 24}
    special = {"bos_token_id": BOS, "eos_token_id": 3, "pad_token_id": 0}
    both = imported(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **special)), tmp_path)
    export(both.folder, tmp_path / "again")
    assert named(tmp_path / "again") == {BOS}


def test_no_bos_comes_back_as_none(tmp_path: Path) -> None:
    export(model_directory(FAMILY_CONFIGS["GPT-2"], tmp_path / "ours"), tmp_path / "hf")
    model = import_model(tmp_path / "hf", tmp_path / "again", say=lambda text: None).run.model
    assert (model.bos_id, model.eos_id) == (None, 3)


def test_the_end_token_begins_a_text_in_llama_cpp(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    export(model_directory(FAMILY_CONFIGS["GPT-2"], tmp_path / "ours"), tmp_path / "out", "gguf")
    reader = gguf.GGUFReader(next((tmp_path / "out").glob("*.gguf")))
    fields = {name: reader.fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos")}
    assert fields == dict.fromkeys(("bos", "eos"), tiny_tokenizer().eos_id)
