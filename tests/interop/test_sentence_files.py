"""Import and export of sentence-transformers files, against a direct computation with transformers."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
import late
from configs import CONFIGS
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.run import MaskedConfig, NoObjective, Run
from glassformer.config.schema import from_dict
from glassformer.config.transformer import VectorHead
from glassformer.tokenization.tokenizer import Tokenizer
from interop.checkpoints import model_directory, randomise, save, tensors
from interop.family_configs import FAMILY_CONFIGS
from interop.test_bert import BERT, COMMON, DISTIL
from tokenization import families
from tolerances import NETWORK, assert_close

transformers = late.optional("transformers")

TEXTS = [
    "to be, or not to be",
    "that is the question",
    "",
    "be",
    "to be, or not to be: that is the question. Ist es edler im Gemüt? 1601 " * 2,
]
MODES = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
OLD_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "lasttoken": "pooling_mode_lasttoken",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
}
OLD_TYPES = [f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize")]
NEW_TYPES = [
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "sentence_transformers.base.modules.normalize.Normalize",
]


def old_pooling(*modes: str) -> dict[str, Any]:
    return {"word_embedding_dimension": 16} | {key: mode in modes for mode, key in OLD_KEYS.items()}


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value))


def encoder(
    folder: Path,
    pooling: dict[str, Any],
    *,
    name: str = "BertModel",
    types: list[str] = OLD_TYPES,
    settings: dict[str, Any] | None = None,
) -> Path:
    """Write a folder of sentence-transformers: a tiny random model and its modules."""
    cls, is_roberta = getattr(transformers, name), name.startswith("Roberta")
    rust, roles = families.roberta(TEXTS * 9) if is_roberta else families.bert(TEXTS * 9, lowercase=True)
    sizes = DISTIL if name.startswith("Distil") else BERT
    own = {"pad_token_id": 1, "type_vocab_size": 1} if is_roberta else {}
    torch.manual_seed(0)
    theirs = cls(cls.config_class(**COMMON | sizes | own | {"vocab_size": rust.get_vocab_size()})).eval()
    randomise(theirs)
    save(theirs, folder, Tokenizer.imported(rust.to_str(), roles))
    rust.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {f"{role}_token": token for role, token in roles.items()})
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": type_}
        for i, (path, type_) in enumerate(zip(paths, types, strict=False))
    ]
    write(folder, "modules.json", modules)
    write(folder, "1_Pooling/config.json", pooling)
    if settings is not None:
        write(folder, "sentence_bert_config.json", settings)
    return folder


@torch.no_grad()
def their_vectors(folder: Path, mode: str, normalize: bool, max_length: int) -> np.ndarray:
    """Compute the vectors of sentence-transformers, text by text, from the hidden states of transformers."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    network = transformers.AutoModel.from_pretrained(folder).eval()
    found = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")["input_ids"]
        hidden = network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        by_mode = {"cls": hidden[0], "lasttoken": hidden[-1], "mean": hidden.mean(0), "max": hidden.max(0).values}
        x = by_mode[mode]
        found.append((x / x.norm() if normalize else x).numpy())
    return np.stack(found)


def imported(hf: Path, out: Path) -> tuple[Any, list[str]]:
    messages: list[str] = []
    import_model(hf, out, log=messages.append)
    return glassformer.load(out, device="cpu"), messages


@pytest.mark.parametrize(
    ("name", "mode", "normalize"),
    [
        *(("BertModel", mode, normalize) for mode in MODES for normalize in (False, True)),
        ("RobertaModel", "mean", True),
        ("RobertaModel", "lasttoken", False),
        ("DistilBertModel", "cls", True),
        ("DistilBertModel", "max", False),
    ],
)
def test_modules_survive_import_and_export(tmp_path: Path, name: str, mode: str, normalize: bool) -> None:
    """The vectors equal the direct computation; the exported files and their import are equal too."""
    types = OLD_TYPES if normalize else OLD_TYPES[:2]
    settings = {"max_seq_length": 9, "do_lower_case": False}
    hf = encoder(tmp_path / "hf", old_pooling(mode), name=name, types=types, settings=settings)
    model, messages = imported(hf, tmp_path / "ours")
    assert any(line.endswith("; texts are cut to 9 tokens") for line in messages)
    pooler = "none" if name.startswith("Distil") else "unused"
    assert model.network.config.head == VectorHead(MODES[mode], pooler, normalize, 9)  # type: ignore[arg-type]
    notes: list[str] = []
    vectors = model.embed(TEXTS, log=notes.append)
    blank, cut = notes
    assert blank == "1 of 5 texts is blank: a blank text has the vector of its special tokens alone"
    assert cut.endswith("texts are longer than 9 tokens and are cut")
    assert_close(vectors, their_vectors(hf, mode, normalize, 9), terms=NETWORK)

    messages = export(tmp_path / "ours", tmp_path / "back").said
    assert any(line.startswith("modules.json for sentence-transformers: Transformer, Pooling") for line in messages)
    back = tmp_path / "back"
    for file in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert json.loads((back / file).read_text()) == json.loads((hf / file).read_text()), file
    assert json.loads((back / "tokenizer_config.json").read_text())["model_max_length"] == 9
    before, after = tensors(hf), tensors(back)
    assert before.keys() == after.keys() and all(torch.equal(x, after[name]) for name, x in before.items())
    again, _ = imported(back, tmp_path / "again")
    assert again.network.config.head == model.network.config.head
    assert np.array_equal(again.embed(TEXTS, log=notes.append), vectors)


@pytest.mark.parametrize("form", ["string", "list", "string_and_old_keys"])
def test_the_new_format_of_the_settings(tmp_path: Path, form: str) -> None:
    pooling = {"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}
    pooling |= {"pooling_mode": ["cls"]} if form == "list" else {}
    pooling |= old_pooling("mean") if form == "string_and_old_keys" else {}
    settings = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    settings |= {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}}  # type: ignore[dict-item]
    hf = encoder(tmp_path / "hf", pooling, types=NEW_TYPES, settings=settings)
    write(hf, "2_Normalize/config.json", {"module_input_name": "sentence_embedding"})
    write(
        hf,
        "config_sentence_transformers.json",
        {"model_type": "SentenceTransformer", "prompts": {"query": "", "document": ""}, "default_prompt_name": None},
    )
    settings = json.loads((hf / "tokenizer_config.json").read_text())
    write(hf, "tokenizer_config.json", settings | {"model_max_length": 8})
    model, messages = imported(hf, tmp_path / "ours")
    assert model.network.config.head == VectorHead("first", "unused", True, 8) and len(messages) == 1
    found = model.embed(TEXTS, log=messages.append)
    assert_close(found, their_vectors(hf, "cls", True, 8), terms=NETWORK)


def test_defaults_are_the_mean_and_the_models_length(tmp_path: Path) -> None:
    hf = encoder(tmp_path / "hf", {"word_embedding_dimension": 16}, types=OLD_TYPES[:2])
    tokenizer = json.loads((hf / "tokenizer_config.json").read_text())
    write(hf, "tokenizer_config.json", tokenizer | {"model_max_length": int(1e30)})
    model, _ = imported(hf, tmp_path / "ours")
    assert model.network.config.head == VectorHead("mean", "unused")


def test_another_head_is_ignored(tmp_path: Path) -> None:
    """The configuration may name a class with a head, but sentence-transformers loads the bare model."""
    hf = encoder(tmp_path / "hf", old_pooling("mean"), name="RobertaModel")
    write(hf, "config.json", json.loads((hf / "config.json").read_text()) | {"architectures": ["RobertaForMaskedLM"]})
    model, _ = imported(hf, tmp_path / "ours")
    expected = their_vectors(hf, "mean", True, 22)
    assert_close(model.embed(TEXTS, log=lambda text: None), expected, terms=NETWORK)


@pytest.mark.parametrize("head", [VectorHead("mean"), VectorHead("first"), VectorHead("max", normalize=True)])
def test_a_head_without_pooler_is_exported_without_one(tmp_path: Path, head: VectorHead) -> None:
    """The export adds no pooler and reports that transformers initialises one, which no vector uses."""
    folder = model_directory(replace(CONFIGS["vectors_mean"], head=head), tmp_path / "ours", objective=NoObjective())
    model = glassformer.load(folder, device="cpu")
    messages = export(folder, tmp_path / "hf").said
    assert "no pooler is stored: transformers initialises one randomly; sentence vectors do not use it" in messages
    assert not any("pooler" in name for name in tensors(tmp_path / "hf"))
    again, _ = imported(tmp_path / "hf", tmp_path / "again")
    assert again.network.config.head == head
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    with torch.no_grad():
        assert torch.equal(again.network(ids), model.network(ids))


def test_a_pooler_without_a_module_is_reported(tmp_path: Path) -> None:
    folder = model_directory(CONFIGS["vectors_first"], tmp_path / "ours", objective=NoObjective())
    messages = export(folder, tmp_path / "hf").said
    assert any(
        line.startswith("modules.json is not written: sentence-transformers has no module for the pooler")
        for line in messages
    )
    assert not (tmp_path / "hf" / "modules.json").exists()


def test_prompts_are_listed(tmp_path: Path) -> None:
    hf = encoder(tmp_path / "hf", old_pooling("mean"))
    prompts = {"prompts": {"query": "query: ", "document": ""}, "similarity_fn_name": "cosine", "__version__": {}}
    write(hf, "config_sentence_transformers.json", prompts)
    _, messages = imported(hf, tmp_path / "a")
    assert messages[0] == "the prompts (query 'query: ') are not imported: add them before a text yourself"
    write(hf, "config_sentence_transformers.json", prompts | {"default_prompt_name": "query"})
    _, messages = imported(hf, tmp_path / "b")
    assert messages[0] == "the default prompt 'query: ' is not imported: add it before each text yourself"


def module(folder: Path, place: int, **changes: Any) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[place] |= changes
    write(folder, "modules.json", modules)


DENSE = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
CANNOT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "dense": (
        lambda f: write(f, "modules.json", [*json.loads((f / "modules.json").read_text()), DENSE]),
        "the modules Transformer, Pooling, Normalize, Dense are not supported",
    ),
    "no_pooling": (lambda f: write(f, "modules.json", []), "the modules .* are not supported.*remove modules.json"),
    "no_list": (lambda f: write(f, "modules.json", {"a": 1}), "must be a list of modules"),
    "own_code": (lambda f: module(f, 1, type="custom_st.Pooling"), "requires custom code .custom_st.Pooling"),
    "elsewhere": (lambda f: module(f, 0, path="0_Transformer"), "the Transformer is in 0_Transformer; move its files"),
    "outside": (lambda f: module(f, 1, path="../1_Pooling"), "path must name a subfolder"),
    "no_settings": (lambda f: (f / "1_Pooling/config.json").unlink(), "1_Pooling/config.json is missing"),
    "weighted": (
        lambda f: write(f, "1_Pooling/config.json", old_pooling("weightedmean")),
        "the pooling weightedmean is not supported",
    ),
    "square_root": (
        lambda f: write(f, "1_Pooling/config.json", old_pooling("mean_sqrt_len_tokens")),
        "the pooling mean_sqrt_len_tokens is not supported",
    ),
    "two_at_once": (
        lambda f: write(f, "1_Pooling/config.json", old_pooling("cls", "mean")),
        r"the pooling cls \+ mean is not supported",
    ),
    "new_two": (
        lambda f: write(f, "1_Pooling/config.json", {"embedding_dimension": 16, "pooling_mode": ["cls", "max"]}),
        r"the pooling cls \+ max is not supported",
    ),
    "not_a_mode": (
        lambda f: write(f, "1_Pooling/config.json", {"embedding_dimension": 16, "pooling_mode": [{"a": 1}]}),
        "is not supported",
    ),
    "another_width": (
        lambda f: write(f, "1_Pooling/config.json", old_pooling("mean") | {"word_embedding_dimension": 8}),
        "embedding_dimension: expected 16 .the model's width., got 8",
    ),
    "unknown_key": (
        lambda f: write(f, "1_Pooling/config.json", old_pooling("mean") | {"pooling_mode_median": True}),
        "pooling_mode_median is not a known key",
    ),
    "without_prompt": (
        lambda f: write(f, "1_Pooling/config.json", old_pooling("mean") | {"include_prompt": False}),
        "include_prompt False is not supported",
    ),
    "tokens_normalized": (
        lambda f: write(f, "2_Normalize/config.json", {"module_input_name": "token_embeddings"}),
        "module_input_name token_embeddings is not supported",
    ),
    "query_length": (
        lambda f: write(f, "sentence_bert_config.json", {"query_length": 32}),
        "query_length 32 is not supported",
    ),
    "chat": (
        lambda f: write(f, "sentence_bert_config.json", {"modality_config": {"message": {"method": "forward"}}}),
        "modality_config .*message.* is not supported",
    ),
    "no_length": (
        lambda f: write(f, "sentence_bert_config.json", {"max_seq_length": 0}),
        "max_seq_length: expected at least 1, got 0",
    ),
    "truncated": (
        lambda f: write(f, "config_sentence_transformers.json", {"truncate_dim": 8}),
        "truncate_dim 8 is not supported",
    ),
    "sparse": (
        lambda f: write(f, "config_sentence_transformers.json", {"model_type": "SparseEncoder"}),
        "model_type SparseEncoder is not supported",
    ),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder(tmp_path_factory.mktemp("good") / "hf", old_pooling("mean"))


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_represented_is_refused(good: Path, tmp_path: Path, case: str) -> None:
    hf = tmp_path / "hf"
    shutil.copytree(good, hf)
    change, words = CANNOT[case]
    change(hf)
    with pytest.raises(UserError, match=words):
        import_model(hf, tmp_path / "ours", log=lambda text: None)
    assert not (tmp_path / "ours").exists()


def test_do_lower_case_must_agree_with_the_tokenizer(good: Path, tmp_path: Path) -> None:
    """`do_lower_case` is accepted if the tokenizer lowercases by itself, and refused otherwise."""
    hf = tmp_path / "hf"
    shutil.copytree(good, hf)
    write(hf, "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": True})
    model, _ = imported(hf, tmp_path / "ours")
    assert model.network.config.head.max_tokens == 9
    tokenizer = json.loads((hf / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    write(hf, "tokenizer.json", tokenizer)
    with pytest.raises(UserError, match=r"do_lower_case true is not supported if tokenizer\.json"):
        imported(hf, tmp_path / "cased")


def test_sentence_encoders_of_other_families_are_refused(tmp_path: Path) -> None:
    encoder = model_directory(FAMILY_CONFIGS["EuroBERT"], tmp_path / "ours", objective=MaskedConfig())
    export(encoder, tmp_path / "hf")
    write(tmp_path / "hf", "modules.json", [])
    with pytest.raises(UserError, match="which is not supported for EuroBERT"):
        import_model(tmp_path / "hf", tmp_path / "again")


def test_a_recipe_uses_its_head_of_vectors() -> None:
    """Only directories have the older meaning: a recipe may omit settings with a default."""
    head = {"kind": "vectors", "pooling": "first", "pooler": "tanh"}
    run = from_dict(Run, {"model": {"encoder": {}, "head": head}})
    assert run.model.head == VectorHead("first", "tanh")  # type: ignore[union-attr]
