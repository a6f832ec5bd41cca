"""`glassformer import`: convert a checkpoint of transformers or a GGUF file to a model directory."""

import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.interop import sentence_files, tokenizer_files
from glassformer.apps.interop.directory import CONFIG, GENERATION, HFFolder, is_gguf, local
from glassformer.apps.interop.equivalent import shapes_of
from glassformer.apps.interop.families import FAMILIES, nearest
from glassformer.apps.interop.family import Family, Rule, matches, renamed
from glassformer.apps.interop.generation import end_tokens, read_generation
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.apps.interop.vocabulary_files import TOKENIZER_CONFIG
from glassformer.common import files
from glassformer.common.errors import Log, UserError, listed, shown
from glassformer.config import transformer as c
from glassformer.config.run import LabelData, Run
from glassformer.inference.classify import described
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import require_rows, write_model_files
from glassformer.tasks.requirements import BUILT_IN
from glassformer.tasks.task import task_of_kind
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from glassformer.tokenization.vocabulary import language_of, languages, with_languages, without_language

NUMBER = re.compile(r"-?[\d,.]*\d(?:e[+-]?\d+)?|-?inf|nan")
PROBLEMS = ("single_label_classification", "regression")
"""`problem_type` of a classifier with several labels, and with one label: the defaults of transformers."""
MULTI_LABEL = "multi_label_classification"


@dataclass(frozen=True)
class Imported:
    """Result of an import."""

    family: str
    architecture: str
    run: Run
    n_parameters: int


def import_model(
    source: str | Path,
    out: str | Path,
    ignore_tensors: Sequence[str] = (),
    log: Log = print,
    *,
    ignore_keys: Sequence[str] = (),
) -> Imported:
    """Import a checkpoint of transformers (a folder or `hf:OWNER/NAME`) or a GGUF file as the model directory `out`.

    `ignore_tensors` names tensors to skip (patterns such as `cls.seq_relationship.*`), and `ignore_keys` names unknown
    configuration keys to ignore. `log` receives a message about each setting that is not imported, such as a generation
    default. Raises `UserError`, and writes nothing, if a key or tensor is not supported.
    """
    out = files.as_path(out, "out")
    files.require_new_folder(out)
    # The network's configuration
    path = local(source)
    if is_gguf(path):
        return _import_gguf(path, out, ignore_tensors, log, ignore_keys)
    folder = HFFolder.open(path)
    family, architecture = find_family(folder, ignore_tensors, ignore_keys, log)
    config, labels = read_config(folder, family, architecture, ignore_keys, log)
    # Tokenizers, and the ids of special tokens
    tokenizers = tokenizer_files.read_tokenizers(folder, log, family.roles, family.builder, family.vocabulary)
    tokenizer = tokenizers.target
    ends = _end_tokens(folder, config, log)
    config = _with_special_ids(config, folder, tokenizer, ends, log)
    defaults = folder.config | folder.table(GENERATION) | {"eos_token_id": ends}
    tokenizers = _with_target_language(tokenizers, defaults.get("forced_bos_token_id"), config.decoder_start_id)
    tokenizer = tokenizers.target
    require_rows(Tokenizers(tokenizer, tokenizers.source), config, folder.path)
    # Weights and generation defaults
    weights = read_weights(folder, family, config, ignore_tensors, log)
    generation = read_generation(defaults, config, tokenizer, str(folder.path / GENERATION), log)
    # What is not imported
    if (folder.path / "additional_chat_templates").is_dir():
        log("the templates of additional_chat_templates are not imported; the chat template is")
    if folder.table(TOKENIZER_CONFIG).get("auto_map"):
        log(f"{TOKENIZER_CONFIG} requires custom code (auto_map), which is never run: only tokenizer.json is read")
    if sentence_files.has_modules(folder):
        sentence_files.log_not_imported(folder, log)
    if folder.config.get("auto_map"):
        log(f"{CONFIG} names custom code (auto_map), which is never run: the model is read as {architecture}")
    # The model directory
    if isinstance(config.head, c.VectorHead):
        log(f"sentence vector: {described(config.head)}")
    run = Run(
        name=out.resolve().name,
        description=f"{family.name}, imported",
        architecture=architecture,
        model=config,
        generation=generation,
    )
    run = as_learned(run, tokenizer, labels)
    if isinstance(config.head, c.SequenceHead) and folder.config.get("problem_type") == MULTI_LABEL:
        run = replace(run, data=LabelData(outputs="multi_label"))
    with files.new_folder(out) as new:
        write_model_files(new, weights, tokenizers, run, labels)
        Manifest.of(new, "model", 0, sorted(path.name for path in new.iterdir())).write(new)
    return Imported(family.name, architecture, run, sum(x.numel() for x in weights.values()))


def _import_gguf(
    path: Path, out: Path, ignore_tensors: Sequence[str], log: Log, ignore_keys: Sequence[str]
) -> Imported:
    from glassformer.apps.interop.gguf_files import write_folder

    with tempfile.TemporaryDirectory() as place:
        write_folder(path, Path(place))
        try:
            return import_model(place, out, ignore_tensors, log, ignore_keys=ignore_keys)
        except UserError as error:
            raise UserError(str(error).replace(place, str(path))) from error


def find_family(
    folder: HFFolder, ignore_tensors: Sequence[str] = (), ignore_keys: Sequence[str] = (), log: Log = print
) -> tuple[Family, str]:
    """Return the family of a folder, and the class of its model.

    `config.json` names the class. For a folder of sentence-transformers, it is the family's class without a head. If
    `config.json` names no class, it is the first class whose tensors the folder has, and `log` receives its name.
    """
    # Families of the type
    model_type, architectures = folder.config.get("model_type"), folder.config.get("architectures")
    names = architectures if isinstance(architectures, list) else [architectures]
    of_type = [family for family in FAMILIES if family.model_type == model_type]
    if not of_type:
        known = ", ".join(dict.fromkeys(family.model_type for family in FAMILIES))
        problem = f"{folder.path / CONFIG}: model_type {shown(str(model_type))} is not supported"
        if folder.config.get("auto_map"):
            problem += ", and its custom code (auto_map) is never run"
        raise UserError(f"{problem}{nearest(folder.config, CONFIG, names)}; supported types: {known}")
    classes = {name: family for family in of_type for name in family.heads}
    known = ", ".join(classes)
    # Without a class name, the tensors decide
    if architectures is None:
        for name, family in classes.items():
            if _fits(folder, family, name, ignore_tensors, ignore_keys):
                log(f"{CONFIG} has no architectures: the tensors are those of {name}, which is assumed")
                return family, name
        read_config(folder, of_type[0], next(iter(of_type[0].heads)), ignore_keys)  # raises for a wrong configuration
        raise UserError(
            f"{folder.path / CONFIG} has no architectures, the class name of the model, and the tensors of the folder "
            f"are those of none of {known}: add the class, or skip the tensors of another head with --ignore-tensors"
        )
    # The family that has the class
    name = ", ".join(map(str, names))
    if name in classes:
        family = classes[name]
        if sentence_files.has_modules(folder) and family.bare:
            return family, next(iter(family.bare))  # sentence-transformers ignores the head
        return family, name
    name = shown(name)
    problem = f"{folder.path / CONFIG}: architectures {name} is not supported for {of_type[0].name}"
    if reason := of_type[0].refused.get(name):
        problem += f": {reason}"
    raise UserError(f"{problem} (known: {known})")


def _fits(
    folder: HFFolder, family: Family, architecture: str, ignore_tensors: Sequence[str], ignore_keys: Sequence[str]
) -> bool:
    try:
        config, _ = read_config(folder, family, architecture, ignore_keys, log=lambda text: None)
        require_fit(folder, family, config, ignore_tensors)
    except UserError:
        return False
    return True


def read_config(
    folder: HFFolder, family: Family, architecture: str, ignore: Sequence[str] = (), log: Log = print
) -> tuple[c.TransformerConfig, tuple[str, ...]]:
    """Return the configuration and the names of labels; raise one `UserError` that lists all problems.

    `log` receives a message about each unknown key in `ignore`; any other name in `ignore` is an error.
    """
    # Read the keys; an error about a setting of glassformer names the keys that cause it
    hf = HFConfig(folder.config, str(folder.path / CONFIG), folder.tensors.keys(), ignore)
    try:
        config = family.read(hf, architecture)
    except UserError as error:
        if str(error).startswith(hf.where):
            raise
        keys = _keys_of_error(hf, family, architecture, str(error))
        raise UserError(": ".join([hf.where, *keys, str(error)])) from error
    # Report unknown keys, and what is ignored
    hf.done()
    if wrong := [key for key in ignore if key not in hf.ignored]:
        raise UserError(f"{folder.path / CONFIG} has no unknown key {shown(wrong[0])}: remove it from --ignore-keys")
    for note in hf.notes:
        log(note)
    for key, value in hf.ignored.items():
        log(f"ignored (--ignore-keys): {key} = {shown(str(value))} in {CONFIG}")
    if isinstance(config.head, c.VectorHead):
        return replace(config, head=sentence_files.read_head(folder, config)), _unused_labels(folder)
    if sentence_files.has_modules(folder):
        raise UserError(
            f"{folder.path} is a sentence encoder ({sentence_files.MODULES}), which is not supported for "
            f"{family.name}; {sentence_files.WITHOUT}"
        )
    if not isinstance(config.head, (c.PositionHead, c.SequenceHead)):
        return config, _unused_labels(folder)
    # Labels of a classifier
    labels = _labels(folder)
    problem, where = folder.config.get("problem_type"), folder.path / CONFIG
    if isinstance(config.head, c.SequenceHead) and problem not in (None, MULTI_LABEL, PROBLEMS[len(labels) == 1]):
        raise UserError(f"{where}: problem_type {shown(str(problem))} is not supported for {len(labels)} labels")
    return replace(config, head=replace(config.head, n_labels=len(labels))), labels


def _keys_of_error(hf: HFConfig, family: Family, architecture: str, message: str) -> list[str]:
    """Return the numbers of `config.json` that cause an error about a setting of glassformer, as [`key = value, …`].

    The function tries other values for each number. A number is a cause if another value removes the error, or changes
    the numbers in its message.
    """

    def message_with(path: tuple[str, ...], value: float) -> str | None:
        *outer, key = path
        changed: Any = {key: value}
        for name in outer:
            changed = {name: hf.table[name] | changed}
        try:
            family.read(HFConfig({**hf.table, **changed}, hf.where, hf.tensors), architecture)
        except UserError as error:
            return str(error)
        return None

    values: dict[tuple[str, ...], Any] = {(key,): value for key, value in hf.table.items()}
    values |= {(key, inner): x for key, part in hf.table.items() if isinstance(part, dict) for inner, x in part.items()}
    numbers = {path: value for path, value in values.items() if type(value) in (int, float)}
    keys = []
    for path, value in numbers.items():
        others = {message_with(path, other) for other in (1, 2, 8, 64, 0.5) if type(other) is type(value)}
        same_rule = {text for text in others if text is None or NUMBER.sub("", text) == NUMBER.sub("", message)}
        if same_rule - {message}:
            keys.append(f"{'.'.join(path)} = {value}")
    return [", ".join(keys)] if keys else []


def _unused_labels(folder: HFFolder) -> tuple[str, ...]:
    """Return the label names of a model without a classifier, for a later export; empty if they are the defaults."""
    try:
        names = _labels(folder)
    except UserError:
        return ()
    if names == tuple(f"LABEL_{i}" for i in range(len(names))):
        return ()
    return names


def _labels(folder: HFFolder) -> tuple[str, ...]:
    table, where = folder.config.get("id2label"), folder.path / CONFIG
    if table is None:
        n_labels = folder.config.get("num_labels", 2)
        if type(n_labels) is not int or not 1 <= n_labels <= c.MAX_VOCAB:
            raise UserError(f"{where}: num_labels: expected 1 to {c.MAX_VOCAB:,}, got {shown(str(n_labels))}")
        table = {str(i): f"LABEL_{i}" for i in range(n_labels)}
    if not isinstance(table, dict) or sorted(table) != sorted(map(str, range(len(table)))):
        raise UserError(f"{where}: id2label must have the keys 0, 1, 2 …")
    labels = tuple(str(table[str(i)]) for i in range(len(table)))
    if len(set(labels)) < len(labels):
        raise UserError(f"{where}: id2label has a duplicate name: give each label its own name")
    return labels


def read_weights(
    folder: HFFolder, family: Family, config: c.TransformerConfig, ignore_tensors: Sequence[str] = (), log: Log = print
) -> dict[str, Tensor]:
    """Return every tensor of a model from a folder; float64 is converted to float32, with a message to `log`.

    Raises one `UserError` that lists the tensors that are missing, unknown, of another shape, or not finite.
    """
    # Which tensors are read, and which are left out
    rules, names = require_fit(folder, family, config, ignore_tensors)
    used = {name for rule in rules for name in rule.theirs}
    fixed = family.fixed(config)
    if others := [name for name in names if name not in used and matches(name, _other_heads(family, config))]:
        log(f"left out, also from an export: {', '.join(others)}: they belong to another head")
    # Read and convert each tensor
    weights: dict[str, Tensor] = {}
    with folder.reading() as take:
        for rule in rules:
            theirs = {name: take(names[name]) for name in rule.theirs}
            weights |= rule.to_ours({name: x.float() if x.dtype == torch.float64 else x for name, x in theirs.items()})
        # Tensors that the configuration determines, and copies of tensors, must have the expected values
        for name in fixed.keys() & names.keys():
            x, expected = take(names[name]), fixed[name]  # the file may have another dtype
            if x.shape != expected.shape or not torch.allclose(x.float(), expected, rtol=0, atol=1e-2):
                raise UserError(f"{folder.path}: {name} differs from the values that {CONFIG} determines")
        for copy, first in family.repeats.items():
            if copy not in names or copy in used or matches(copy, ignore_tensors):
                continue
            while first not in used:
                first = family.repeats[first]
            if not torch.equal(take(names[copy]), take(names[first])):
                advice = f"skip it with --ignore-tensors {copy}"
                if config.tie_output:
                    advice = f"set tie_word_embeddings to false if the model has both, or {advice}"
                raise UserError(
                    f"{folder.path}: {copy} differs from {first}, and must be equal according to {CONFIG}: {advice}"
                )
    _require_finite(folder, rules, weights)
    if n_wide := sum(folder.tensors[names[name]].dtype == torch.float64 for name in used):
        log(f"{n_wide:,} float64 tensors are converted to float32")
    return weights


def _require_finite(folder: HFFolder, rules: Sequence[Rule], weights: Mapping[str, Tensor]) -> None:
    theirs = {name: ", ".join(rule.theirs) for rule in rules for name in rule.ours}
    counts = {name: x.numel() - int(x.isfinite().sum()) for name, x in weights.items()}
    if bad := [f"{theirs[name]} ({n:,} of {weights[name].numel():,} values)" for name, n in counts.items() if n]:
        what = f"{folder.path} has NaN or Inf in its weights (as float32): "
        advice = "; the checkpoint is damaged: download it again, or use another one"
        raise UserError(what + listed(bad, beside=what + advice) + advice)


def _names_in_files(folder: HFFolder, family: Family, known: Collection[str]) -> dict[str, str]:
    """Return, for each current tensor name, the name in the files: it may be old, or lack the prefix of the network."""
    names: dict[str, str] = {}
    for name in folder.tensors:
        current = renamed(name, family.old_names)
        whole = family.prefix + current
        if current not in known and (whole in known or matches(whole, family.derived)):
            current = whole
        if current in names:
            raise UserError(
                f"{folder.path}: {shown(names[current])} and {shown(name)} are two names of the same tensor"
            )
        names[current] = name
    for copy, first in family.repeats.items():
        if first not in names and copy in names:  # a file may store a tied tensor under either name
            names[first] = names[copy]
    return names


def require_fit(
    folder: HFFolder, family: Family, config: c.TransformerConfig, ignore_tensors: Sequence[str] = ()
) -> tuple[list[Rule], dict[str, str]]:
    """Return the rules of a configuration, and the name of each tensor in the files; read only the headers.

    Raises one `UserError` that lists the tensors that are missing, unknown, or of another shape.
    """
    rules, shapes = family.rules(config), shapes_of(config)
    used = {name for rule in rules for name in rule.theirs}
    used |= {name for name, copied in family.unread.items() if copied in used}
    used |= family.repeats.keys() | family.fixed(config).keys()
    names = _names_in_files(folder, family, used)
    problems = []
    for rule in rules:
        for name, shape in rule.shapes_of_theirs(shapes).items():
            if name not in names:
                problems.append(f"{name} is missing")
                continue
            stored = folder.tensors[names[name]]
            if stored.shape != shape:
                problems.append(f"{name}: expected shape {list(shape)}, got {list(stored.shape)}")
            elif not stored.dtype.is_floating_point:
                problems.append(f"{name}: expected floats, got {stored.dtype}".replace("torch.", ""))
    skipped = [*family.derived, *_other_heads(family, config), *ignore_tensors]
    unknown = [name for name in names if name not in used and not matches(name, skipped)]
    problems += [f"{shown(name)} is not a tensor of this model" for name in unknown]
    if problems:
        hint = f"; --ignore-tensors {shown(unknown[0])} skips a tensor that is not needed" if unknown else ""
        what = f"{folder.path}: the tensors do not fit the configuration: "
        raise UserError(what + listed(problems, beside=what + hint) + hint)
    return rules, names


def _other_heads(family: Family, config: c.TransformerConfig) -> tuple[str, ...]:
    return family.other_heads.get(config.head.kind, ())


def _with_special_ids(
    config: c.TransformerConfig, folder: HFFolder, tokenizer: Tokenizer, ends: Sequence[int], log: Log
) -> c.TransformerConfig:
    """Set the ids of special tokens from `config.json`, or else from the tokenizer.

    If several tokens (`ends`) end a text, `eos_id` is the tokenizer's end token if it is one of them, or else the
    first. The others become `end_ids` of the generation settings. The `decoder_start_id` of a decoder-only model is the
    last token that the tokenizer puts before a text, since transformers puts no other token there.
    """
    ids: dict[str, Any] = {}
    configured = folder.table(GENERATION) | {key: x for key, x in folder.config.items() if x is not None}
    for name in c.SPECIAL_IDS:
        key = name.removesuffix("_id") + "_token_id"
        token_id = configured.get(key)
        ids[name] = getattr(tokenizer, name, None)
        if name == "eos_id":
            token_id = ids[name] if ids[name] in ends else next(iter(ends), None)
        if token_id is None:
            continue
        if type(token_id) is not int:
            raise UserError(f"{folder.path / CONFIG}: {key}: expected an integer, got {shown(str(token_id))}")
        if 0 <= token_id < config.vocab_size:
            ids[name] = token_id
        else:  # -1, or the default of a larger vocabulary
            log(f"{key} {token_id} is not an id of the vocabulary, and is ignored")
    if config.encoder is None:
        ids["decoder_start_id"] = next(reversed(tokenizer.frames.prompt.before), None)
    return replace(config, **ids)


def _with_target_language(tokenizers: Tokenizers, forced: Any, start: int | None) -> Tokenizers:
    """Return the tokenizers with the language token of targets, if sources have a language token.

    The token is the one that generation is forced to begin with. If the decoder starts with a language token instead
    (mBART), targets get no further language token. Otherwise, targets have the language of the sources.
    """
    target = tokenizers.target
    tokens = {target.vocab[token]: token for token in languages(target)}
    if language_of(tokenizers.source) is None:
        return tokenizers
    if isinstance(forced, int) and forced in tokens:
        return with_languages(tokenizers, None, tokens[forced])
    if start in tokens:
        return Tokenizers(without_language(target), tokenizers.source)
    return tokenizers


def _end_tokens(folder: HFFolder, config: c.TransformerConfig, log: Log) -> list[int]:
    """Return the end tokens of `generation_config.json` or else `config.json`, as `generate` of transformers does."""
    tables = {GENERATION: folder.table(GENERATION), CONFIG: folder.config}
    of_generation, of_config = (end_tokens(table, str(folder.path / name)) for name, table in tables.items())
    ends = of_generation or of_config
    for end in ends:
        if not 0 <= end < config.vocab_size:
            log(f"eos_token_id {end} is not an id of the vocabulary, and is ignored")
    return [end for end in ends if 0 <= end < config.vocab_size]


def as_learned(run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run:
    """Return the run with the task that fits its network. `generate`, `fill`, … and `train --init` need this task."""
    adopted = [task_of_kind(kind).adopt(run, tokenizer, labels) for kind in BUILT_IN]
    fitting = [run for run in adopted if run is not None]
    if len(fitting) != 1:
        raise UserError(f"no glassformer task fits the network of {run.name!r} ({run.architecture})")
    return fitting[0]
