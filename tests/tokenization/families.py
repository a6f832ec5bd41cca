"""Tiny tokenizers of the kinds that published models have, trained here, and the roles of their special tokens."""

import base64
import json
from collections.abc import Sequence
from importlib import resources, util
from typing import TYPE_CHECKING, Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import late
from glassformer.tokenization.validate_tokenizer_json import ROLES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

transformers = late.module("transformers")

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
LLAMA_2 = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
T5 = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
Family = tuple[Tokenizer, dict[str, str]]


def families(texts: Sequence[str]) -> dict[str, Family]:
    """Return all kinds, by name."""
    return {
        "bert": bert(texts, lowercase=True),
        "bert-cased": bert(texts, lowercase=False),
        "gpt2": gpt2(texts),
        "roberta": roberta(texts),
        "llama-3": llama_3(texts),
        "llama-2": llama_2(texts, legacy=False),
        "llama-2-legacy": llama_2(texts, legacy=True),
        "t5": t5(texts),
        "qwen": qwen(texts),
    }


def bert(texts: Sequence[str], *, lowercase: bool) -> Family:
    rust = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    rust.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    train(rust, trainers.WordPieceTrainer, texts, list(BERT.values()))
    cls, sep = (rust.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    return rust, BERT


def byte_level(texts: Sequence[str], special: Sequence[str | AddedToken], splitting: Any = None) -> Tokenizer:
    rust = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting is None)
    rust.pre_tokenizer = level if splitting is None else pre_tokenizers.Sequence([splitting, level])
    rust.decoder = decoders.ByteLevel()
    rust.post_processor = processors.ByteLevel(trim_offsets=False)
    train(rust, trainers.BpeTrainer, texts, special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return rust


def few_bytes(texts: Sequence[str], splitting: Any = None, unknown: str | None = None) -> Tokenizer:
    """Return a byte-level tokenizer that was trained without a given alphabet: it lacks the bytes of other texts."""
    rust = Tokenizer(models.BPE(unk_token=unknown))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.pre_tokenizer = level if splitting is None else pre_tokenizers.Sequence([splitting, level])
    rust.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", *([] if unknown is None else [unknown])]
    train(rust, trainers.BpeTrainer, texts, special, initial_alphabet=[])
    return rust


def gpt2(texts: Sequence[str]) -> Family:
    end = "<|endoftext|>"
    return byte_level(texts, [end]), {"bos": end, "eos": end, "unk": end}


def roberta(texts: Sequence[str]) -> Family:
    mask = AddedToken("<mask>", lstrip=True, special=True, normalized=False)
    rust = byte_level(texts, ["<s>", "<pad>", "</s>", "<unk>", mask])
    rust.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return rust, ROBERTA


def llama_3(texts: Sequence[str]) -> Family:
    """Train a tokenizer whose special tokens are after the vocabulary, and whose whole words need no merges."""
    rust = byte_level(texts, [], pre_tokenizers.Split(Regex(LLAMA_3), "isolated"))
    rust.model.ignore_merges = True
    rust.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    begin = "<|begin_of_text|>"
    rust.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{begin}:0 $A:0",
                pair=f"{begin}:0 $A:0 {begin}:1 $B:1",
                special_tokens=[(begin, rust.token_to_id(begin))],
            ),
        ]
    )
    return rust, {"bos": begin, "eos": "<|end_of_text|>"}


def qwen(texts: Sequence[str]) -> Family:
    """Train a tokenizer with NFC, and added tokens that are not special."""
    rust = byte_level(texts, [], pre_tokenizers.Split(Regex(LLAMA_3.replace("{1,3}", "")), "isolated"))
    rust.normalizer = normalizers.NFC()
    rust.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    rust.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return rust, {"eos": "<|im_end|>", "pad": "<|endoftext|>"}


def llama_2(texts: Sequence[str], *, legacy: bool) -> Family:
    """Train SentencePiece's BPE with bytes for unknown characters; with `legacy` a normalizer adds the first space."""
    learned = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    learned.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # a space is only at the start of a piece
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    train(learned, trainers.BpeTrainer, texts, ["<unk>", "<s>", "</s>", *bytes_], size=1500, limit_alphabet=150)
    rust = Tokenizer(learned.model)
    rust.add_special_tokens(["<unk>", "<s>", "</s>"])
    if legacy:
        rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        rust.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    rust.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0", pair="<s>:0 $A:0 <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return rust, LLAMA_2


def t5(texts: Sequence[str]) -> Family:
    """Train Unigram after SentencePiece's map of characters, or after NFKC if that package is missing."""
    rust = Tokenizer(models.Unigram())
    charsmap = precompiled()
    first = normalizers.NFKC() if charsmap is None else normalizers.Precompiled(charsmap)
    rust.normalizer = normalizers.Sequence([first, normalizers.Replace(Regex(" {2,}"), " ")])
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(5))]
    train(rust, trainers.UnigramTrainer, texts, special, size=800, unk_token="<unk>")
    rust.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return with_short_scores(rust), T5


def with_short_scores(rust: Tokenizer) -> Tokenizer:
    """Round the scores of a Unigram model to multiples of 1 / 1024.

    The library may read other scores with an error in the last bit. Then equal sums, such as those of "a" + "aa" and
    "aa" + "a", are equal in one copy of a tokenizer and not in another.
    """
    text = json.loads(rust.to_str())
    text["model"]["vocab"] = [[piece, round(1024 * score) / 1024] for piece, score in text["model"]["vocab"]]
    return Tokenizer.from_str(json.dumps(text))


def precompiled() -> bytes | None:
    """Return the map nmt_nfkc of T5 and Marian."""
    if util.find_spec("sentencepiece") is None:
        return None
    path = resources.files("sentencepiece") / "package_data" / "nmt_nfkc.bin"
    return path.read_bytes() if path.is_file() else None


def own_classes(found: dict[str, Family]) -> "dict[str, PreTrainedTokenizerFast]":
    """Return the same vocabularies in the classes of `transformers` for the families."""

    def parts(name: str) -> dict[str, Any]:
        model = json.loads(found[name][0].to_str())["model"]
        vocab = model["vocab"]
        if isinstance(vocab, list):
            return {"vocab": [(piece, score) for piece, score in vocab]}
        return {"vocab": vocab} | ({"merges": list(map(tuple, model["merges"]))} if "merges" in model else {})

    return {
        "bert": transformers.BertTokenizer(**parts("bert")),
        "distilbert": transformers.DistilBertTokenizer(**parts("bert")),
        "gpt2": transformers.GPT2Tokenizer(**parts("gpt2")),
        "roberta": transformers.RobertaTokenizer(**parts("roberta")),
        "bart": transformers.BartTokenizer(**parts("roberta")),
        "llama": transformers.LlamaTokenizer(**parts("llama-2")),
        "qwen": transformers.Qwen2Tokenizer(**parts("qwen")),
        "t5": transformers.T5Tokenizer(**parts("t5"), extra_ids=5, _spm_precompiled_charsmap=precompiled()),
    }


def roles_of(theirs: "PreTrainedTokenizerFast") -> dict[str, str]:
    """Return the roles of the special tokens of a tokenizer of `transformers`."""
    named = {role: getattr(theirs, f"{role}_token") for role in ROLES}
    return {role: token for role, token in named.items() if token is not None}


def train(
    rust: Tokenizer,
    trainer: Any,
    texts: Sequence[str],
    special: Sequence[str | AddedToken],
    size: int = 1200,
    **more: Any,
) -> None:
    rust.train_from_iterator(texts, trainer(vocab_size=size, special_tokens=list(special), show_progress=False, **more))


def charsmap_text(charsmap: bytes) -> str:
    """Return the map as text of a `tokenizer.json`."""
    return base64.b64encode(charsmap).decode("ascii")
