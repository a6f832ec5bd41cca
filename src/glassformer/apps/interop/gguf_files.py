"""GGUF files of llama.cpp: the rules that split a text into words, and conversion to a folder of transformers.

A GGUF file has the name of such a rule, but no regular expression.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from glassformer.apps.interop.directory import CONFIG, GENERATION, quiet
from glassformer.common import files
from glassformer.common.errors import UserError, first_line, needs
from glassformer.store.model_directory import TOKENIZER
from glassformer.tokenization.validate_tokenizer_json import LLAMA3, QWEN, TEKKEN

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS: dict[str, Any] = {"type": "Digits", "individual_digits": True}


def _sequence(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _split(regex: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return _sequence(split, BYTES | {"use_regex": False})


SPLITS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mellum"), BYTES),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "minerva-7b"), _sequence(_DIGITS, BYTES)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _split(QWEN)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe"), _split(LLAMA3)),
    "tekken": _split(TEKKEN),
}
"""For each `tokenizer.ggml.pre`, the pre-tokenizer in a `tokenizer.json`."""
WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"})
"""Names in `SPLITS` for which a word that is itself a token gets its id without merges."""


def split_of(description: Mapping[str, Any]) -> str | None:
    """Return the `tokenizer.ggml.pre` of the byte-level BPE tokenizer in a parsed `tokenizer.json`; else None.

    Normalisation to NFC is ignored, as in llama.cpp.
    """
    model, normalizer = description["model"], description["normalizer"]
    if model["type"] != "BPE" or normalizer not in (None, {"type": "NFC"}):
        return None
    steps, keeps_words = _steps(description["pre_tokenizer"]), bool(model.get("ignore_merges"))
    fitting = (name for name, split in SPLITS.items() if _steps(split) == steps)
    return next((name for name in fitting if (name in WHOLE_WORDS) == keeps_words), None)


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer without the option `trim_offsets`, which does not change ids."""
    whole = pre_tokenizer or {}
    steps = whole.get("pretokenizers", [whole])
    return [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]


ENDS = ("eos", "eot", "eom")
FACTORS = "rope_freqs.weight"
NOT_SAVED = ("quantization_config", "feed_forward_length")
"""Keys that transformers adds to a configuration, although the class of the configuration does not have them."""


def write_folder(path: Path, folder: Path) -> None:
    """Read a GGUF file with transformers; write the model, with float32 tensors, and the tokenizer into a folder.

    Raises `UserError` for a file that transformers cannot read, or would read with other settings.
    """
    with needs("a GGUF file", "export"):
        import accelerate  # noqa: F401 - transformers reads no GGUF file without it
        import gguf
        import transformers
    try:
        reader = gguf.GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        sizes = _sizes(metadata, {tensor.name for tensor in reader.tensors})
        with quiet(transformers.utils.logging):
            read, info = transformers.AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype="float32", output_loading_info=True, **sizes
            )
            if any(info.values()) or len(list(read.parameters())) != len(reader.tensors):
                raise ValueError("its tensors are not those of this architecture in transformers")
            settings = {key: x for key, x in read.config.to_dict().items() if key not in NOT_SAVED}
            model = type(read)(type(read.config)(**settings))  # `read` counts as quantised, and cannot be saved
            model.load_state_dict(read.state_dict())
            model.save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
    except Exception as error:  # errors of gguf and transformers share no base class
        reason = f"{type(error).__name__}: {first_line(error):.200}"
        raise UserError(f"{path} cannot be imported: transformers cannot read it: {reason}") from error
    _correct(folder, metadata, model.config.vocab_size)


def _sizes(metadata: Mapping[str, Any], tensors: Collection[str]) -> dict[str, int]:
    """Return the sizes that transformers does not read from the file, under the keys of transformers."""
    name = metadata["general.architecture"]
    own = {key.removeprefix(f"{name}."): x for key, x in metadata.items()}
    kind = own.get("rope.scaling.type", "linear")
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear", 1.0))
    if FACTORS in tensors or (kind != "none" and (kind, factor) != ("linear", 1.0)):
        raise ValueError("it does not read the rotary scaling of the file: import the folder that the file was made of")
    if name == "gpt2":
        return {"n_positions": own["context_length"], "n_inner": own["feed_forward_length"]}
    return {"head_dim": own["attention.key_length"]} if name == "qwen3" else {}


def _correct(folder: Path, metadata: Mapping[str, Any], n_rows: int) -> None:
    """Add to the written files what the GGUF file has and transformers does not keep.

    These are rounded decimal numbers, llama.cpp's split into words, all end tokens, and the chat template. Also
    remove the tokens without a row of the table, which transformers adds.
    """
    config = files.read_json(folder / CONFIG)
    rounded = {key: float(f"{x:.7g}") for key, x in config.items() if isinstance(x, float)}
    files.write_json(folder / CONFIG, config | rounded)
    tokenizer = files.read_json(folder / TOKENIZER)
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < n_rows]
    split = metadata.get(f"{PREFIX}pre")
    if split in SPLITS:
        tokenizer["pre_tokenizer"] = SPLITS[split]
        tokenizer["model"]["ignore_merges"] = split in WHOLE_WORDS
    files.write_json(folder / TOKENIZER, tokenizer)
    ends = [metadata[key] for name in ENDS if (key := f"{PREFIX}{name}_token_id") in metadata]
    files.write_json(folder / GENERATION, {"eos_token_id": list(dict.fromkeys(ends))})
    if template := metadata.get(TEMPLATE):
        files.write_text(folder / "chat_template.jinja", template)
