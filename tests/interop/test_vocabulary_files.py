"""Folders with only `vocab.json` and `merges.txt`, or `vocab.txt`, give the ids of transformers."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import late
from glassformer import load
from glassformer.apps.cli.main import run
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.tokenization.tokenizer import Tokenizer
from interop.checkpoints import TEXT, randomise

transformers = late.optional("transformers")

SPECIAL = {
    "gpt2": ("<|endoftext|>",),
    "qwen2": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "qwen3": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "bart": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "distilbert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
}
WORDS = ("bert", "distilbert")
CLASSES = {"gpt2": "GPT2LMHeadModel", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
CLASSES |= {"roberta": "RobertaForMaskedLM", "bart": "BartForConditionalGeneration"}
CLASSES |= {"bert": "BertForMaskedLM", "distilbert": "DistilBertForMaskedLM"}
SIZES = dict.fromkeys(("hidden_size", "dim", "n_embd", "d_model"), 16)
SIZES |= dict.fromkeys(("num_attention_heads", "n_heads", "n_head"), 4)
SIZES |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
SIZES |= dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "encoder_layers", "decoder_layers"), 1)
SIZES |= dict.fromkeys(("intermediate_size", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 24)
SIZES |= {"num_key_value_heads": 4, "vocab_size": 700}
IDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id"))


def folder_of(kind: str, place: Path) -> Path:
    """Write a random model and only the files of its vocabulary."""
    known = transformers.AutoConfig.for_model(kind).to_dict()
    sizes = {key: value for key, value in SIZES.items() if key in known}
    ids = dict(IDS) if kind != "roberta" else {**IDS, "pad_token_id": 1}
    if kind == "bart":
        ids |= {"pad_token_id": 1, "decoder_start_token_id": 2}
    model = getattr(transformers, CLASSES[kind])(transformers.AutoConfig.for_model(kind, **sizes, **ids))
    randomise(model)
    model.save_pretrained(place)
    if kind in WORDS:
        letters = sorted(set(TEXT.lower()) - {" "})
        words = sorted(set(TEXT.lower().replace(",", " ").replace(":", " ").split()))
        pieces = [*letters, *(f"##{letter}" for letter in letters), *(word for word in words if len(word) > 1)]
        tokens = list(dict.fromkeys([*SPECIAL[kind], *pieces]))
        (place / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        return place
    learned = Tokenizer.train([TEXT * 4], vocab_size=330, special_tokens=SPECIAL[kind])
    (place / "vocab.json").write_text(json.dumps(learned.vocab), encoding="utf-8")
    merges = "".join(f"{left} {right}\n" for left, right in learned.merges)
    (place / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    return place


def lines(n: int = 300) -> list[str]:
    """Return random texts of words, numbers, spaces, scripts and signs."""
    draw = random.Random(0)
    parts = [
        "to be",
        " be",
        "or",
        "Question",
        "GEMÜT",
        "é",
        "e\u0301",
        "1601",
        "42",
        "  ",
        "\n",
        "\t",
        "日本",
        "☃",
        "'s",
        "n't",
    ]
    parts += ["!", "...", "Ω", "a", "that is", "\u00a0", "🙂", "#", "_x", "ﬁ"]
    return ["".join(draw.choices(parts, k=draw.randint(1, 12))) for _ in range(n)]


@pytest.mark.parametrize("kind", SPECIAL)
def test_ids_and_texts_equal_transformers(kind: str, tmp_path: Path) -> None:
    hf, messages = folder_of(kind, tmp_path / "hf"), list[str]()
    import_model(hf, tmp_path / "ours", log=messages.append)
    assert any(line.startswith("no tokenizer.json: the tokenizer is built from vocab") for line in messages)
    theirs: Any = transformers.AutoTokenizer.from_pretrained(hf)
    ours = load(tmp_path / "ours", device="cpu").tokenizer
    assert len(set(lines())) > 250
    for line in lines():
        expected = theirs(line)["input_ids"]
        assert ours.frames.text.around(ours.encode(line)) == expected, line
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True), line
    roles = {role: getattr(theirs, f"{role}_token_id") for role in ("pad", "cls", "sep", "mask", "eos")}
    for role, token_id in roles.items():
        if token_id is not None:
            assert getattr(ours, f"{role}_id") == token_id, role


def test_settings_of_the_folder_are_used(tmp_path: Path) -> None:
    """The vocabulary is cased, and tokens were added after it."""
    hf = folder_of("bert", tmp_path / "hf")
    n = len((hf / "vocab.txt").read_text().splitlines())
    settings = {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}
    (hf / "tokenizer_config.json").write_text(json.dumps(settings))
    (hf / "added_tokens.json").write_text(json.dumps({"[NEW]": n}))
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    ours = load(tmp_path / "ours", device="cpu").tokenizer
    assert ours.vocab["[NEW]"] == n
    assert ours.encode("TO") == [ours.unk_id] and ours.encode("to") == [ours.vocab["to"]]


DAMAGES = {
    "a merge of three": ("merges.txt", "a b c\n", "has a line that is not a pair of tokens: a b c"),
    "a merge of unknown tokens": ("merges.txt", "☃ ☃\n", "cannot build a tokenizer from "),
    "a vocabulary that is a list": ("vocab.json", "[1, 2]", "must contain a JSON object of token → id"),
    "ids with a gap": ("vocab.json", '{"a": 0, "<|endoftext|>": 7}', "cannot be used as a tokenizer"),
    "added tokens that are numbers": ("added_tokens.json", '{"x": "y"}', "tokenizer"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_in_one_sentence(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, text, expected = DAMAGES[damage]
    hf = folder_of("gpt2", tmp_path / "hf")
    if name == "vocab.json":
        (hf / "merges.txt").write_text("")
    (hf / name).write_text(text)
    capsys.readouterr()
    assert run(["import", str(hf), str(tmp_path / "ours")]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("glassformer: ") and expected in message
    assert not (tmp_path / "ours").exists()


def test_the_bytes_of_byt5(tmp_path: Path) -> None:
    """ByT5 has no vocabulary file: ids and texts are those of its tokenizer class, also after an export."""
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4, "vocab_size": 384}
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", decoder_start_token_id=0)
    )
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "hf")
    tokenizer = transformers.ByT5Tokenizer()
    tokenizer.save_pretrained(tmp_path / "hf")
    messages: list[str] = []
    import_model(tmp_path / "hf", tmp_path / "ours", log=messages.append)
    assert "no tokenizer.json: the tokenizer is built from tokenizer_config.json" in messages
    export(tmp_path / "ours", tmp_path / "back")
    ours, again = load(tmp_path / "ours"), transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    draw = random.Random(1)
    texts = [TEXT, "a", "", "  two  spaces\n", "Grüße, 世界 😀"]
    texts += ["".join(chr(draw.randrange(1, 0xD800)) for _ in range(9)) for _ in range(100)]
    for text in texts:
        expected = tokenizer(text)["input_ids"]
        assert ours.tokenizer.encode(text) == expected[:-1]
        assert again(text)["input_ids"] == expected
        assert ours.tokenizer.decode(expected) == text
    assert ours.tokenizer.frames.source.after == (tokenizer.eos_token_id,)
    assert ours.tokenizer.vocab["<extra_id_0>"] == tokenizer.convert_tokens_to_ids("<extra_id_0>") == 259
