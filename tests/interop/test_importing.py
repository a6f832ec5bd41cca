"""Refusals name the file and the key; the class of a folder without `architectures` follows from its tensors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer.apps.interop.directory import HFFolder
from glassformer.apps.interop.families import FAMILIES
from glassformer.apps.interop.hf import their_config, to_theirs, write_weights
from glassformer.apps.interop.importing import find_family, import_model, read_config
from glassformer.common.errors import UserError
from glassformer.config.transformer import (
    Head,
    PositionHead,
    RotaryPositions,
    SequenceHead,
    TokenHead,
    TransformerConfig,
    VectorHead,
)
from glassformer.models.build import build_model
from glassformer.store.model_directory import weights_of
from interop.checkpoints import VOCAB, tiny_tokenizer
from interop.family_configs import FAMILY_CONFIGS

FAMILY = {family.name: family for family in FAMILIES}
UNSUPPORTED: tuple[Any, ...] = ("wrong", [7], {"a": 1}, -1, 0, 3, 7, 1 << 62, 0.5, float("inf"), float("nan"), True)
SPECIAL = {"pad_id": 0, "bos_id": 2, "eos_id": 3}
HEADS: tuple[Head, ...] = (
    TokenHead(),
    TokenHead(transform=True, bias="learned"),
    SequenceHead(3, "first", "tanh"),
    SequenceHead(3, "mean", "gelu"),
    SequenceHead(3, "first", "relu"),
    PositionHead(3),
    VectorHead(pooling="first", pooler="tanh"),
)


def config_of(name: str) -> TransformerConfig:
    return replace(FAMILY_CONFIGS[name], vocab_size=VOCAB, **SPECIAL)  # type: ignore[arg-type]


def read(table: dict[str, Any]) -> TransformerConfig:
    folder = HFFolder(Path("here"), table, {})
    family, architecture = find_family(folder)
    return read_config(folder, family, architecture)[0]


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_a_refusal_names_the_file_and_the_key(name: str) -> None:
    """Change each key to half of the unsupported values: it is read, or the sentence names file and key.

    The other half follows in the next family.
    """
    table = their_config(FAMILY[name], config_of(name), ())
    assert read(table).vocab_size == VOCAB
    n_refused = 0
    for number, key in enumerate(table, [*FAMILY_CONFIGS].index(name)):
        for value in UNSUPPORTED[number % 2 :: 2]:
            try:
                read(table | {key: value})
            except UserError as error:
                n_refused += 1
                assert str(error).startswith("here/config.json") and key in str(error), (key, value, str(error))
    assert n_refused > 40


def test_the_positions_of_t5_are_refused_by_their_keys() -> None:
    table = their_config(FAMILY["T5"], config_of("T5"), ())
    changes = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 16}
    with pytest.raises(UserError) as raised:
        read(table | changes)
    assert str(raised.value) == (
        "here/config.json: relative_attention_num_buckets = 32, relative_attention_max_distance = 16: "
        "model.positions.n_buckets is 32 and must be at least 4, and below 2 × max_distance"
    )


def test_a_nested_number_is_refused_by_its_key() -> None:
    rope = {"rope_type": "linear", "factor": -2.0, "rope_theta": 100.0}
    table = their_config(FAMILY["Llama"], config_of("Llama"), ())
    with pytest.raises(
        UserError, match=r"^here/config\.json: rope_parameters\.factor = -2\.0: model\.positions\.scaling"
    ):
        read({key: value for key, value in table.items() if "rope" not in key} | {"rope_parameters": rope})


def written(name: str, head: Head, folder: Path) -> str:
    """Write a random checkpoint of a family with a head; return its class, or "" if the family has no such head."""
    family, config = FAMILY[name], replace(config_of(name), head=head)
    if family.misfits(config):
        return ""
    config, weights = family.recast(config, weights_of(build_model(config)))
    folder.mkdir()
    table = their_config(family, config, ())
    del table["architectures"]
    (folder / "config.json").write_text(json.dumps(table))
    write_weights(to_theirs(family, config, weights).items(), folder)
    tiny_tokenizer().save(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return family.architecture(config)


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_a_missing_class_follows_from_the_tensors(name: str, tmp_path: Path) -> None:
    found = set()
    for number, head in enumerate(HEADS):
        folder = tmp_path / str(number)
        if architecture := written(name, head, folder):
            messages: list[str] = []
            imported = import_model(folder, tmp_path / f"{number}-ours", log=messages.append)
            assert imported.architecture == architecture
            assert messages[0] == (
                f"config.json has no architectures: the tensors are those of {architecture}, which is assumed"
            )
            found.add(architecture)
    assert found and found <= set(FAMILY[name].heads)


def test_a_missing_class_that_does_not_follow(tmp_path: Path) -> None:
    """The tensors of another head may be skipped; a wrong setting is named before the tensors."""
    assert written("BERT", HEADS[1], tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps(table | {"num_hidden_layers": 1}))
    with pytest.raises(UserError, match=r"config\.json has no architectures.*none of BertForMaskedLM, .*--ignore-ten"):
        import_model(tmp_path / "hf", tmp_path / "ours")
    skipped = import_model(tmp_path / "hf", tmp_path / "ours", ["bert.encoder.layer.1.*"], lambda text: None)
    assert skipped.architecture == "BertForMaskedLM"
    path.write_text(json.dumps(table | {"hidden_act": "quick_gelu"}))
    with pytest.raises(UserError, match=r"hidden_act quick_gelu is not supported"):
        import_model(tmp_path / "hf", tmp_path / "again")


@pytest.mark.parametrize("architectures", [5, "CohereForCausalLM", ["CohereForCausalLM"], [], [5], None])
def test_an_unknown_type_is_refused_with_the_nearest_family_before_the_list(architectures: object) -> None:
    """The family is the nearest one for every form of `architectures`, of which one has the wrong type."""
    table = their_config(FAMILY["Llama"], config_of("Llama"), ())
    with pytest.raises(UserError) as raised:
        read(table | {"model_type": "cohere", "architectures": architectures})
    assert str(raised.value).startswith(
        "here/config.json: model_type cohere is not supported; its keys are those of Llama, but its layers may differ; "
        "supported types: gpt2, llama, "
    )


def test_an_unknown_type_with_heads_without_width_is_refused() -> None:
    """Some families compute a factor from the width of a head."""
    table = their_config(FAMILY["Llama"], config_of("Llama"), ()) | {"model_type": "cohere", "head_dim": 0}
    with pytest.raises(UserError, match="model_type cohere is not supported"):
        read(table)


def test_a_scale_of_scores_from_zero_is_refused() -> None:
    table = their_config(FAMILY["Llama"], config_of("Llama"), ()) | {"query_pre_attn_scalar": 0, "head_dim": 4}
    with pytest.raises(UserError, match="query_pre_attn_scalar: expected at least 1, got 0"):
        read(table | {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]})


NEOX: dict[str, Any] = {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}
NEOX |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 9}
NEOX |= {"max_position_embeddings": 24}


@pytest.mark.parametrize("old", [{}, {"rope_parameters": {"rope_type": "default"}}])
def test_rotary_keys_that_transformers_ignores_for_neox_are_refused(old: dict[str, Any]) -> None:
    """A top-level rope_theta or partial_rotary_factor alone has no effect there."""
    with pytest.raises(UserError) as raised:
        read(NEOX | old | {"rope_theta": 50.0, "partial_rotary_factor": 0.5})
    assert "partial_rotary_factor: transformers reads only rope_parameters or rotary_pct, and uses 0.25, not 0.5; " in (
        str(raised.value)
    )
    assert "rope_theta: transformers reads only rope_parameters or rotary_emb_base, and uses 10000.0, not 50.0" in (
        str(raised.value)
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"rotary_emb_base": 50, "rotary_pct": 0.5},
        {"rotary_emb_base": 50, "rotary_pct": 0.5, "rope_theta": 50.0, "partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5}, "rope_theta": 50.0},
    ],
)
def test_rotary_keys_that_transformers_reads_for_neox_are_read(keys: dict[str, Any]) -> None:
    assert read(NEOX | keys).positions == RotaryPositions(base=50.0, fraction=0.5)


@pytest.mark.parametrize("name", ["MBartModel", "MBartForSequenceClassification", "MBartForCausalLM"])
def test_the_other_classes_of_mbart_are_refused(name: str) -> None:
    """In transformers, the decoder of the first two starts with the last token that is no padding."""
    with pytest.raises(UserError) as raised:
        read({"model_type": "mbart", "architectures": [name]})
    reason = ": its decoder starts with the last token of the text, and not with decoder_start_token_id"
    if name == "MBartForCausalLM":
        reason = ""
    assert str(raised.value) == (
        f"here/config.json: architectures {name} is not supported for mBART{reason} "
        "(known: MBartForConditionalGeneration)"
    )


def test_custom_code_beside_a_known_family_is_ignored(tmp_path: Path) -> None:
    """EuroBERT's published files name the class of their own code and of transformers alike."""
    assert written("EuroBERT", HEADS[0], tmp_path / "hf") == "EuroBertForMaskedLM"
    path = tmp_path / "hf" / "config.json"
    code = {"AutoConfig": "configuration_eurobert.EuroBertConfig", "AutoModel": "modeling_eurobert.EuroBertModel"}
    given = json.loads(path.read_text()) | {"architectures": ["EuroBertForMaskedLM"], "auto_map": code}
    given |= {"_model_name_or_path": "here", "clf_pooling": "late", "scale_attn_by_inverse_layer_idx": False}
    path.write_text(json.dumps(given))
    (tmp_path / "hf" / "modeling_eurobert.py").write_text("raise SystemExit('the code was run')")
    messages: list[str] = []
    assert import_model(tmp_path / "hf", tmp_path / "ours", log=messages.append).family == "EuroBERT"
    assert messages == [
        "config.json names custom code (auto_map), which is never run: the model is read as EuroBertForMaskedLM"
    ]
    path.write_text(json.dumps(given | {"scale_attn_by_inverse_layer_idx": True}))
    with pytest.raises(UserError, match=r"scale_attn_by_inverse_layer_idx True is not supported \(known: False\)"):
        import_model(tmp_path / "hf", tmp_path / "again")
    path.write_text(json.dumps(given | {"model_type": "jina_bert"}))
    with pytest.raises(
        UserError, match=r"model_type jina_bert is not supported, and its custom code \(auto_map\) is never"
    ):
        import_model(tmp_path / "hf", tmp_path / "again")
