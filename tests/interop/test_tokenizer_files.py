"""Exported tokenizers: `AutoTokenizer` and a new import give the same ids as the original."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import late
from glassformer.apps.interop.directory import HFFolder
from glassformer.apps.interop.tokenizer_files import read_tokenizers, write_tokenizers
from glassformer.common.errors import UserError
from glassformer.config.run import InfillingConfig, ObjectiveConfig, Seq2SeqConfig, SpansConfig
from glassformer.config.transformer import SequenceHead, Stack, TransformerConfig
from glassformer.store.model_directory import StoredModel, read_model
from glassformer.tokenization.schemes import SCHEMES, Scheme
from glassformer.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer, Tokenizers
from interop.checkpoints import TEXT, model_directory
from tokenization import families

transformers = late.optional("transformers")

STACK = Stack(n_layers=1, n_heads=2, d_ff=8)
DECODER = TransformerConfig(decoder=STACK, d_model=8, vocab_size=400, max_len=64)
ENCODER = replace(DECODER, encoder=STACK, decoder=None)
BOTH = replace(ENCODER, decoder=STACK, source_max_len=32)
CLASSES = SequenceHead(n_labels=2)
MODELS = {
    "decoder": DECODER,
    "decoder with classes": replace(DECODER, head=CLASSES),
    "encoder": ENCODER,
    "encoder with token types": replace(ENCODER, n_token_types=2),
    "encoder with classes": replace(ENCODER, n_token_types=2, head=CLASSES),
}
CONTRARY = [
    ("bert", "BertTokenizer", {"do_lower_case": False}),
    ("bert", "BertTokenizer", {"strip_accents": False}),
    ("bert", "BertTokenizer", {"tokenize_chinese_chars": False}),
    ("roberta", "RobertaTokenizer", {"add_prefix_space": True}),
]
FEW = ("[UNK]", "[EOS]")
LINES = ("to be, or not", "edler im  Gemüt?", " the question ", "", "1601", "zzz ☃ qq to", "to\n\nbe")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """A stored model whose parts the tests replace."""
    return read_model(model_directory(DECODER, tmp_path_factory.mktemp("any") / "ours"))


def learn(scheme: Scheme, special: tuple[str, ...], text: str = TEXT) -> Tokenizer:
    n = {"byte": 300, "whole_words": 0}.get(scheme, 100)
    return Tokenizer.train([text * 4], vocab_size=n, scheme=scheme, special_tokens=special, min_frequency=1)


def gone_out(stored: StoredModel, folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    write_tokenizers(stored, folder)
    return folder


@pytest.mark.parametrize("special", [SPECIAL_TOKENS, FEW], ids=["all", "few"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MODELS)
def test_ids_of_texts_and_pairs_are_equal(
    stored: StoredModel, tmp_path: Path, name: str, scheme: Scheme, special: tuple
) -> None:
    config, ours = MODELS[name], learn(scheme, special)
    folder = gone_out(replace(stored, config=config, tokenizers=Tokenizers(ours)), tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.model_max_length == 64
    read = read_tokenizers(HFFolder(folder, {}, {}), print)
    back = read.target
    assert read.separate_source is None and back.vocab == ours.vocab
    is_mask_wide = scheme == "byte" and config.encoder is not None and special != FEW
    assert back.scheme == (None if is_mask_wide else scheme)
    for line in LINES:
        ids = ours.encode(line)
        assert back.encode(line) == ids
        if name == "decoder":
            assert theirs(line)["input_ids"] == ours.frames.prompt.around(ids) == back.frames.prompt.around(ids)
            continue
        assert theirs(line)["input_ids"] == ours.frames.text.around(ids) == back.frames.text.around(ids)
        for second in LINES[:3]:
            two = ours.frames.pair.around_pair(ids, ours.encode(second))
            found = theirs(line, second, return_token_type_ids=True)
            assert (found["input_ids"], found["token_type_ids"]) == two
            assert back.frames.pair.around_pair(ids, ours.encode(second)) == two
            assert ("token_type_ids" in theirs(line, second)) == (config.n_token_types > 0)


@pytest.mark.parametrize("n_tokenizers", [1, 2])
@pytest.mark.parametrize("objective", [Seq2SeqConfig(), InfillingConfig(), SpansConfig()])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_ids_of_sources_and_targets_are_equal(
    stored: StoredModel, tmp_path: Path, scheme: Scheme, objective: ObjectiveConfig, n_tokenizers: int
) -> None:
    """Both end with the end token, for every objective and for one or two vocabularies."""
    target = learn(scheme, FEW)
    source = learn(scheme, FEW, TEXT[::-1]) if n_tokenizers == 2 else None
    run = replace(stored.run, objective=objective)
    stored = replace(stored, config=BOTH, run=run, tokenizers=Tokenizers(target, source))
    folder = gone_out(stored, tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    of_target = transformers.AutoTokenizer.from_pretrained(folder / "target") if source else theirs
    assert (theirs.model_max_length, of_target.model_max_length) == (32, 64 if source else 32)
    back = read_tokenizers(HFFolder(folder, {}, {}), print)
    source, source_back, target_back = source or target, back.source, back.target
    for line in LINES:
        ids = [*source.encode(line), source.eos_id]
        assert theirs(line)["input_ids"] == ids == source_back.frames.source.around(source_back.encode(line))
        ids = [*target.encode(line), target.eos_id]
        assert of_target(text_target=line)["input_ids"] == ids
        assert target_back.frames.target.around(target_back.encode(line)) == ids


@pytest.mark.parametrize(("name", "kind", "settings"), CONTRARY)
def test_settings_that_change_the_file_are_refused(
    tmp_path: Path, name: str, kind: str, settings: dict[str, Any]
) -> None:
    """The classes of transformers follow the settings and would give other ids than the file."""
    rust, roles = families.families([TEXT] * 9)[name]
    rust.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    stored = settings | {f"{role}_token": token for role, token in roles.items()}
    folder, line = HFFolder(tmp_path, {}, {}), "To be, or nöt 日本"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stored | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    ours = read_tokenizers(folder, print).target  # this class ignores the settings
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    as_the_file_says = theirs(line)["input_ids"]
    assert ours.frames.text.around(ours.encode(line)) == as_the_file_says
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stored | {"tokenizer_class": kind}))
    with pytest.raises(UserError, match=f"{next(iter(settings))} .* differs from tokenizer.json"):
        read_tokenizers(folder, print)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(line)["input_ids"] != as_the_file_says
    theirs.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": name}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    ours = read_tokenizers(HFFolder(tmp_path / "saved", {}, {}), print).target
    assert ours.frames.text.around(ours.encode(line)) == theirs(line)["input_ids"]


CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
MESSAGES = [{"role": "user", "content": "to be?"}, {"role": "assistant", "content": "or not"}]


@pytest.mark.parametrize("in_its_own_file", [False, True])
@pytest.mark.parametrize(
    "template", [CHAT, [{"name": "default", "template": CHAT}, {"name": "tools", "template": "t"}]]
)
def test_a_chat_template_survives_import_training_and_export(
    stored: StoredModel, tmp_path: Path, template: Any, in_its_own_file: bool
) -> None:
    """transformers renders the exported template, and glassformer encodes the result to the same ids."""
    marks = ("<|im_start|>", "<|im_end|>")
    folder = gone_out(replace(stored, tokenizers=Tokenizers(learn("byte", (*FEW, *marks)))), tmp_path / "hf")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if in_its_own_file:
        (folder / "chat_template.jinja").write_text(CHAT)
        template = CHAT
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    messages: list[str] = []
    tokenizer = read_tokenizers(HFFolder(folder, {}, {}), messages.append).target
    again = pickle.loads(pickle.dumps(Tokenizer.from_json(tokenizer.to_json()).with_special_tokens(["[MASK]"])))
    assert tokenizer.chat_template == again.chat_template == template and messages == []
    theirs = transformers.AutoTokenizer.from_pretrained(
        gone_out(replace(stored, tokenizers=Tokenizers(tokenizer)), tmp_path / "again")
    )
    text = theirs.apply_chat_template(MESSAGES, tokenize=False)
    assert text.startswith("<|im_start|>user\nto be?<|im_end|>\n")
    ids = theirs.apply_chat_template(MESSAGES, return_dict=False)
    assert tokenizer.encode(text, allow_special=tokenizer.special_tokens) == ids != tokenizer.encode(text)


@pytest.mark.parametrize("template", [3, {"name": CHAT}, [CHAT], [{"name": "a", "template": None}]])
def test_a_chat_template_of_another_type_is_refused(stored: StoredModel, tmp_path: Path, template: Any) -> None:
    folder = gone_out(stored, tmp_path / "hf")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    with pytest.raises(
        UserError, match=r"tokenizer_config\.json: chat_template: expected a text or a list of named texts, got"
    ):
        read_tokenizers(HFFolder(folder, {}, {}), print)


def test_missing_bytes_are_reported_once(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(families.few_bytes([TEXT]).to_str())
    messages: list[str] = []
    tokenizer = read_tokenizers(HFFolder(tmp_path, {}, {}), messages.append).target
    (message,) = messages
    assert message.startswith("the tokenizer's vocabulary lacks ")
    assert message.endswith("0x07 …): in a text, they are dropped, as in transformers")
    assert tokenizer.encode("to\x00be") == tokenizer.encode("to") + tokenizer.encode("be")
