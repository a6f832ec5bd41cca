"""Files of sentence-transformers: conversion of its modules, which make one vector per text, from and to a vector head.

A supported folder has the modules Transformer, Pooling, and optionally Normalize. All other modules are rejected.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.apps.interop.directory import HFFolder
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.apps.interop.vocabulary_files import TOKENIZER_CONFIG
from glassformer.common import files
from glassformer.common.errors import UserError, shown
from glassformer.config.transformer import TransformerConfig, VectorHead
from glassformer.store.model_directory import TOKENIZER
from glassformer.tokenization.validate_tokenizer_json import tables

MODULES, POOLING, NORMALIZE = "modules.json", "1_Pooling", "2_Normalize"
SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""File names of the Transformer module's settings: the current name, then the names in old versions."""
PROMPTS = "config_sentence_transformers.json"
PACKAGE = "sentence_transformers."
KNOWN = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
POOLINGS: dict[str, Any] = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
"""For each pooling of sentence-transformers, the name in glassformer."""
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""For each key of the old format, which has one boolean per pooling, the value of `pooling_mode` in the new format."""
TEXTS_ALONE = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
WITHOUT = f"to import the transformer without its modules, remove {MODULES} from a copy of the folder"


def has_modules(folder: HFFolder) -> bool:
    """Return True for a folder of sentence-transformers."""
    return (folder.path / MODULES).is_file()


def read_head(folder: HFFolder, config: TransformerConfig) -> VectorHead:
    """Return the vector head that the modules of a folder define; `config` is the model without modules.

    Without `modules.json`, the pooling of `config` applies. Texts are truncated to `max_seq_length`, or else to the
    tokenizer's `model_max_length`. Raises `UserError` for modules and settings without a counterpart.
    """
    assert isinstance(config.head, VectorHead)
    head = config.head
    if has_modules(folder):
        pooling, normalize = _read_modules(folder)
        head = VectorHead(_read_pooling(folder, pooling, config.d_model), "none", normalize is not None)
        if config.head.pooler != "none":  # the pooler is stored, and no module applies it
            head = replace(head, pooler="unused")
        if normalize is not None:  # the module must normalise the sentence vector
            hf = HFConfig(folder.table(f"{normalize}/config.json"), str(folder.path / normalize / "config.json"))
            hf.only("module_input_name", "sentence_embedding")
            hf.only("module_output_name", "sentence_embedding")
            hf.done()
    length = _read_length(folder)
    if length is None or length >= config.max_len:
        length = 0
    return replace(head, max_tokens=length)


def _read_modules(folder: HFFolder) -> tuple[str, str | None]:
    """Return the subfolders of Pooling and Normalize; None in place of a missing Normalize."""
    where = folder.path / MODULES
    modules = files.read_json(where)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError(f"{where} must be a list of modules; {WITHOUT}")
    kinds = [str(module.get("type")) for module in modules]
    paths = [str(module.get("path")) for module in modules]
    if others := [kind for kind in kinds if not kind.startswith(PACKAGE)]:
        raise UserError(f"{where} requires custom code ({shown(others[0])}), which is never run; {WITHOUT}")
    names = [kind.rpartition(".")[2] for kind in kinds]
    if names not in KNOWN:
        raise UserError(
            f"{where}: the modules {shown(', '.join(names))} are not supported "
            f"(known: {' or '.join(', '.join(known) for known in KNOWN)}); {WITHOUT}"
        )
    if paths[0] not in ("", "."):
        raise UserError(f"{where}: the Transformer is in {shown(paths[0])}; move its files next to {MODULES}")
    if any(Path(path).name != path or path in ("", ".", "..") or "\\" in path or "\0" in path for path in paths[1:]):
        raise UserError(f"{where}: path must name a subfolder for every module except the first")
    _, pooling, *normalize = paths
    return pooling, next(iter(normalize), None)


def _read_pooling(folder: HFFolder, path: str, d_model: int) -> Any:
    """Return the pooling by its name in glassformer, from the old or new format of the module's settings."""
    where = folder.path / path / "config.json"
    if not where.is_file():
        raise UserError(f"{where} is missing: it defines the pooling")
    hf = HFConfig(folder.table(f"{path}/config.json"), str(where))
    width = hf.maybe("embedding_dimension", int) or hf.maybe("word_embedding_dimension", int)
    hf.pass_over("word_embedding_dimension")
    if width != d_model:
        hf.problem(f"embedding_dimension: expected {d_model} (the model's width), got {width}")
    old = [mode for key, mode in OLD_POOLINGS.items() if hf.maybe(key, bool)] or ["mean"]
    hf.pass_over("pooling_mode")
    modes: Any = hf.table.get("pooling_mode")
    if modes is None:
        modes = old
    elif not isinstance(modes, list):
        modes = [modes]
    if len(modes) != 1 or modes[0] not in list(POOLINGS):  # a value may be of any type
        hf.problem(
            f"the pooling {shown(' + '.join(map(str, modes)))} is not supported (known: one of {', '.join(POOLINGS)})"
        )
    hf.only("include_prompt", True)
    hf.done()
    return POOLINGS[modes[0]]


def _read_length(folder: HFFolder) -> int | None:
    """Return the maximum number of tokens of a text, with special tokens; None if no file defines it."""
    name = next((name for name in SETTINGS if (folder.path / name).is_file()), SETTINGS[0])
    hf = HFConfig(folder.table(name), str(folder.path / name))
    length = hf.maybe("max_seq_length", int)
    if hf.take("do_lower_case", bool, False) and not _lowercases(folder):
        hf.problem("do_lower_case true is not supported if tokenizer.json does not lowercase")
    hf.only("transformer_task", "feature-extraction")
    hf.only("module_output_name", "token_embeddings")
    modalities = hf.maybe("modality_config", dict)
    if modalities not in (None, TEXTS_ALONE):
        hf.problem(f"modality_config {shown(str(modalities))} is not supported (known: {TEXTS_ALONE})")
    hf.pass_over("unpad_inputs", "modality_config")
    for key in ("query_length", "document_length", "query_expansion"):
        hf.only(key)
    for key in ("model", "tokenizer", "processor", "config", "processing"):
        hf.only(f"{key}_args", {})
        hf.only(f"{key}_kwargs", {})
    if length is not None and length < 1:
        hf.problem(f"max_seq_length: expected at least 1, got {length}")
    hf.done()
    if length is not None:
        return length
    limit: Any = folder.table(TOKENIZER_CONFIG).get("model_max_length")
    if type(limit) in (int, float) and 1 <= limit < float("inf"):
        return int(limit)
    return None


def _lowercases(folder: HFFolder) -> bool:
    parts = tables(folder.table(TOKENIZER).get("normalizer"))
    return any(
        part.get("type") == "Lowercase" or (part.get("type") == "BertNormalizer" and part.get("lowercase") is True)
        for part in parts
    )


def log_not_imported(folder: HFFolder, log: Callable[[str], None]) -> None:
    """Log the prompts that sentence-transformers can put before a text: they are not imported."""
    hf = HFConfig(folder.table(PROMPTS), str(folder.path / PROMPTS))
    prompts, default = hf.maybe("prompts", dict) or {}, hf.maybe("default_prompt_name", str)
    hf.only("model_type", "SentenceTransformer")
    hf.only("truncate_dim")
    hf.pass_over("__version__", "similarity_fn_name")
    hf.done()
    prompts = {name: prompt for name, prompt in prompts.items() if prompt}
    if default in prompts:
        log(f"the default prompt {shown(repr(prompts[default]))} is not imported: add it before each text yourself")
    elif prompts:
        names = ", ".join(f"{name} {prompt!r}" for name, prompt in prompts.items())
        log(f"the prompts ({shown(names)}) are not imported: add them before a text yourself")


def write_modules(head: VectorHead, config: TransformerConfig, folder: Path) -> list[str]:
    """Write the modules of a head, unless it has a pooler with an activation; return lines for the report."""
    if head.pooler in ("tanh", "relu"):
        return [
            f"{MODULES} is not written: sentence-transformers has no module for the pooler; it would load the folder "
            "with mean pooling, which gives another vector"
        ]
    kinds = [("", "Transformer"), (POOLING, "Pooling")]
    if head.normalize:
        kinds.append((NORMALIZE, "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{PACKAGE}models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    files.write_json(folder / MODULES, modules)
    (folder / POOLING).mkdir()
    used = {ours: theirs for theirs, ours in POOLINGS.items()}[head.pooling]
    pooling = {"word_embedding_dimension": config.d_model}
    pooling |= {key: mode == used for key, mode in OLD_POOLINGS.items()}
    files.write_json(folder / POOLING / "config.json", pooling)
    settings = {"max_seq_length": head.max_tokens or config.max_len, "do_lower_case": False}
    files.write_json(folder / SETTINGS[0], settings)
    return [f"{MODULES} for sentence-transformers: {', '.join(kind for _, kind in kinds)}"]
