"""The tokenizer of a GGUF file, as a `tokenizer.json` and its settings: byte-level BPE, or SentencePiece's BPE.

The ids are those of llama.cpp. A file names its split of a text into words (`tokenizer.ggml.pre`) and does not contain
the regular expression, so an unknown name is an error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glassformer.errors import shown
from glassformer.interop.vocabulary_files import QWEN
from glassformer.tokenization.special_tokens_template import Frame, template_processing

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # gguf.TokenType
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}
"""Role of a special token → its name in GGUF; the spelling is GGUF's."""
OF_SENTENCEPIECE = {"bos": 1, "eos": 2, "unk": 0}
"""Role → id, if a file with the tokenizer `llama` does not define it."""
ENDS = ("eos", "eot", "eom")
ENDS_BY_TEXT = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<EOT>"),
    "<end_of_turn>",
)
"""Special tokens at which llama.cpp ends a text, although the files do not name them."""
KNOWN: dict[type, str] = {
    str: "model pre",
    list: "tokens token_type scores merges precompiled_charsmap",
    bool: "add_bos_token add_eos_token add_sep_token add_space_prefix remove_extra_whitespaces",
    int: """
    bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id seperator_token_id padding_token_id
    mask_token_id cls_token_id prefix_token_id suffix_token_id middle_token_id token_type_count
    fim_pre_token_id fim_suf_token_id fim_mid_token_id fim_pad_token_id fim_rep_token_id fim_sep_token_id
    """,
}
"""Type → names of metadata that are read, or that change no id."""
SPACE = "▁"
MAX_PIECE_CHARACTERS = 512
_BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS: dict[str, Any] = {"type": "Digits", "individual_digits": True}
_LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _sequence(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _split(regex: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return _sequence(split, _BYTES | {"use_regex": False})


SPLITS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mellum"), _BYTES),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "minerva-7b"), _sequence(_DIGITS, _BYTES)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _split(QWEN)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe"), _split(_LLAMA3)),
    "tekken": _split(_TEKKEN),
}
"""`tokenizer.ggml.pre` → the pre-tokenizer in a `tokenizer.json`."""
WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"})
"""Names in `SPLITS` with which a word that is a token keeps its id without merges, and texts begin with BOS."""


def split_of(description: Mapping[str, Any]) -> str | None:
    """Return the `tokenizer.ggml.pre` of the byte-level BPE tokenizer in a parsed `tokenizer.json`; None for others.

    Normalisation to NFC is ignored, as in llama.cpp.
    """
    model, normalizer = description["model"], description["normalizer"]
    if model["type"] != "BPE" or normalizer not in (None, {"type": "NFC"}):
        return None
    steps, keeps_words = _steps(description["pre_tokenizer"]), bool(model.get("ignore_merges"))
    fitting = (name for name, split in SPLITS.items() if _steps(split) == steps)
    return next((name for name in fitting if (name in WHOLE_WORDS) == keeps_words), None)


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer without `trim_offsets`, which changes no id."""
    whole = pre_tokenizer or {}
    steps = whole.get("pretokenizers", [whole])
    return [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]


class Vocabulary:
    """The tokens of a file with their types and roles; raises `ValueError` for damage."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.model = metadata.get(f"{PREFIX}model")
        self.tokens = list(_texts(metadata, "tokens"))
        self.kinds: list[int] = metadata.get(f"{PREFIX}token_type") or [NORMAL] * len(self.tokens)
        if len(self.kinds) != len(self.tokens):
            raise ValueError(f"it has {len(self.tokens):,} tokens and {len(self.kinds):,} types of tokens")
        while self.tokens and self.kinds[len(self.tokens) - 1] == UNUSED:  # rows of the table without a token
            self.tokens.pop()
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            raise ValueError("its vocabulary has a token twice")
        usual = OF_SENTENCEPIECE if self.model == "llama" else {}
        names = {role: metadata.get(f"{PREFIX}{name}_token_id", usual.get(role)) for role, name in ROLES.items()}
        self.roles = {role: self.token(i, role) for role, i in names.items() if i is not None}
        ends = [metadata.get(f"{PREFIX}{name}_token_id") for name in ENDS]
        self.ends = [self.ids[self.roles["eos"]]] if "eos" in self.roles else []
        self.ends += [self.ids[self.token(i, "end")] for i in ends if i is not None]
        marked = [token for token, kind in self if kind in (CONTROL, USER_DEFINED)]
        self.ends += [self.ids[token] for token in marked if token in ENDS_BY_TEXT]
        self.ends = list(dict.fromkeys(self.ends))

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Return an iterator over (token, type)."""
        return zip(self.tokens, self.kinds, strict=False)

    def token(self, token_id: Any, role: str) -> str:
        if type(token_id) is not int or not 0 <= token_id < len(self.tokens):
            raise ValueError(f"its {role} token has the id {token_id!s:.20}, but it has {len(self.tokens):,} tokens")
        return self.tokens[token_id]

    def added(self) -> list[dict[str, Any]]:
        """Return the tokens that are recognised in a text before it is split."""
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        special = {*self.roles.values(), *(self.tokens[i] for i in self.ends)}
        return [
            {"id": self.ids[token], "content": token, **flags, "special": kind != USER_DEFINED or token in special}
            for token, kind in self
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) or token in special
        ]


def read_tokenizer(metadata: Mapping[str, Any]) -> tuple[str, dict[str, Any], list[int]]:
    """Return the text of a `tokenizer.json`, the `tokenizer_config.json`, and the ids of all end tokens.

    Raises `ValueError` for a damaged or unsupported tokenizer.
    """
    _require_types(metadata)
    kind = metadata.get(f"{PREFIX}model")
    readers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in readers:
        raise ValueError(f"{PREFIX}model {shown(str(kind))} is not supported (known: {', '.join(readers)})")
    vocabulary = Vocabulary(metadata)
    parts = readers[kind](vocabulary, metadata)
    adds_bos = kind == "llama" or metadata[f"{PREFIX}pre"] in WHOLE_WORDS
    description = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": vocabulary.added(), **parts}
    description["model"] |= {"type": "BPE", "vocab": vocabulary.ids}
    description["post_processor"] = _around(vocabulary, metadata, adds_bos)
    settings: dict[str, Any] = {f"{role}_token": token for role, token in vocabulary.roles.items()}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": _chat_template(metadata)}
    return json.dumps(description, ensure_ascii=False), settings, vocabulary.ends


def unknown_keys(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a tokenizer that have no known meaning."""
    known = {PREFIX + name for names in KNOWN.values() for name in names.split()}
    return {key: value for key, value in metadata.items() if key.startswith(PREFIX) and key not in known}


def _require_types(metadata: Mapping[str, Any]) -> None:
    for kind, names in KNOWN.items():
        for name in names.split():
            value = metadata.get(PREFIX + name)
            if value is not None and type(value) is not kind:
                raise ValueError(f"{PREFIX}{name}: expected {kind.__name__}, got {shown(str(value))}")


def _byte_level(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a byte-level BPE tokenizer."""
    split = metadata.get(f"{PREFIX}pre")
    if split not in SPLITS:
        known = ", ".join(SPLITS)
        raise ValueError(f"{PREFIX}pre {shown(str(split))}, its split into words, is not supported (known: {known})")
    merges = [merge.split(" ") for merge in _texts(metadata, "merges")]
    if wrong := [merge for merge in merges if len(merge) != 2]:
        raise ValueError(f"a merge of its tokenizer is not a pair of tokens: {shown(' '.join(wrong[0]))}")
    model = {"unk_token": None, "ignore_merges": split in WHOLE_WORDS, "merges": merges}
    return {"normalizer": None, "pre_tokenizer": SPLITS[split], "decoder": _BYTES, "model": model}


def _sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a tokenizer that merges the pair whose piece has the highest score."""
    for name in ("remove_extra_whitespaces", "precompiled_charsmap"):
        if metadata.get(PREFIX + name):
            raise ValueError(f"{PREFIX}{name} is not supported with the tokenizer llama")
    scores = metadata.get(f"{PREFIX}scores")
    if not scores or len(scores) < len(vocabulary.tokens) or {*map(type, scores)} != {float}:
        raise ValueError(f"{PREFIX}scores: expected one score per token")
    pieces = {token: scores[i] for i, (token, kind) in enumerate(vocabulary) if kind == NORMAL}
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    decoding: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    decoding += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if metadata.get(f"{PREFIX}add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoding.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = vocabulary.roles.get("unk")
    model = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True, "merges": _merges(pieces)}
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoding},
        "model": model,
    }


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that join to a piece, those of the highest score first.

    >>> _merges({"a": -3.0, "b": -3.0, "ab": -1.0, "abb": -2.0})
    [('a', 'b'), ('ab', 'b')]
    """
    if too_long := [piece for piece in scores if len(piece) > MAX_PIECE_CHARACTERS]:
        raise ValueError(f"its token {shown(too_long[0])} has more than {MAX_PIECE_CHARACTERS} characters")
    splits = ((piece[:i], piece[i:]) for piece in scores for i in range(1, len(piece)))
    merges = [(left, right) for left, right in splits if left in scores and right in scores]
    return sorted(merges, key=lambda pair: (-scores[pair[0] + pair[1]], -len(pair[0]), -len(pair[1])))


def _around(vocabulary: Vocabulary, metadata: Mapping[str, Any], adds_bos: bool) -> dict[str, Any] | None:
    """Return the `TemplateProcessing` with the special tokens around texts; None without such tokens."""
    if metadata.get(f"{PREFIX}add_sep_token"):
        raise ValueError(f"{PREFIX}add_sep_token is not supported")
    ids: dict[str, tuple[int, ...]] = {"bos": (), "eos": ()}
    for role, default in {"bos": adds_bos, "eos": False}.items():
        if not metadata.get(f"{PREFIX}add_{role}_token", default):
            continue
        if role not in vocabulary.roles:
            raise ValueError(f"its texts need a {role} token, which it does not define")
        ids[role] = (vocabulary.ids[vocabulary.roles[role]],)
    before, after = ids["bos"], ids["eos"]
    if not before + after:
        return None
    pair = Frame(before, after, after + before, (0,) * len(after) + (1,) * len(before))
    return template_processing(Frame(before, after), pair, vocabulary.tokens.__getitem__)


def _chat_template(metadata: Mapping[str, Any]) -> Any:
    """Return the chat template; a list with names if there are several."""
    names, default = metadata.get(f"{TEMPLATE}s"), metadata.get(TEMPLATE)
    if not isinstance(names, list):
        return default
    named = {name: metadata.get(f"{TEMPLATE}.{name}") for name in names}
    if default is not None:
        named = {"default": default, **named}
    return [{"name": name, "template": template} for name, template in named.items()]


def _texts(metadata: Mapping[str, Any], name: str) -> Sequence[str]:
    value: list[str] | None = metadata.get(PREFIX + name)
    if not value or not all(isinstance(text, str) for text in value):
        raise ValueError(f"it has no {PREFIX}{name}, the list of its tokenizer's {name}")
    return value
