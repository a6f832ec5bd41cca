"""`glassformer import`: a checkpoint of transformers as a model directory, its weights as they are."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import files
from glassformer.config import transformer as c
from glassformer.config.run import Run
from glassformer.errors import UserError, shown
from glassformer.inference.embed import described
from glassformer.interop import sentence_files, tokenizer_files
from glassformer.interop.directory import CONFIG, GENERATION, HFFolder, local
from glassformer.interop.equivalent import shapes_of
from glassformer.interop.families import FAMILIES
from glassformer.interop.family import Family, Key, matches, renamed
from glassformer.interop.generation import read_generation
from glassformer.interop.hf_config import HFConfig
from glassformer.interop.tokenizer_files import TOKENIZER_CONFIG
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import MODEL_FILES, SOME_FILES, write_model_files
from glassformer.tasks.registry import HOMES, task_of_kind
from glassformer.tasks.task import TakesOver
from glassformer.tokenization.tokenizer import Tokenizer

Log = Callable[[str], None]
MAX_LISTED = 8
PROBLEMS = ("single_label_classification", "regression")
"""`problem_type` of a classifier with several labels, and with one: transformers' own choice where nothing is said."""


@dataclass(frozen=True)
class Imported:
    """What was taken over."""

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
    """Writes a checkpoint of transformers, a folder or `hub:OWNER/NAME`, as a model directory into `out`.

    `ignore_tensors` names tensors (patterns such as `cls.seq_relationship.*`) that ours has no place for. `ignore_keys`
    names unknown keys of its configuration that are to be ignored. `log` is told what beside the model has no
    counterpart, such as defaults of generation. `UserError`, and nothing written, when anything is not understood.
    """
    out = files.as_path(out, "out")
    files.require_new_folder(out)
    folder = HFFolder.open(local(source))
    family, architecture = find_family(folder)
    config, labels = read_config(folder, family, architecture, ignore_keys, log)
    tokenizer, source_tokenizer = tokenizer_files.read_tokenizers(
        folder, log, family.roles, family.builder, family.vocabulary
    )
    config = _with_special_ids(config, folder, tokenizer, log)
    n_source_rows = config.encoder_vocab_size
    for one, n_rows in ((tokenizer, config.vocab_size), (source_tokenizer or tokenizer, n_source_rows)):
        if one.vocab_size > n_rows:
            raise UserError(f"{folder.path}: its tokenizer has {one.vocab_size:,} tokens and its model {n_rows:,}")
    weights = read_weights(folder, family, config, ignore_tensors, log)
    said = folder.config | folder.table(GENERATION)
    generation = read_generation(said, config, tokenizer, str(folder.path / GENERATION), log)
    _say_what_stays(folder, log)
    if isinstance(config.head, c.VectorHead):
        log(f"a vector is {described(config.head)}")
    run = Run(
        name=out.resolve().name,
        description=f"{family.name}, taken over",
        architecture=architecture,
        model=config,
        generation=generation,
    )
    run = as_learned(run, tokenizer, labels)
    with files.new_folder(out) as new:
        write_model_files(new, weights, tokenizer, run, source_tokenizer, labels)
        Manifest.of(new, "model", 0, [name for name in [*MODEL_FILES, *SOME_FILES] if (new / name).exists()]).write(new)
    return Imported(family.name, architecture, run, sum(x.numel() for x in weights.values()))


def _say_what_stays(folder: HFFolder, log: Log) -> None:
    """What a folder may hold beside a model, and changes what people read of it."""
    if (folder.path / "chat_template.jinja").is_file() or "chat_template" in folder.table(TOKENIZER_CONFIG):
        log("its chat template is not taken over: a prompt is read as it stands")
    if folder.table(TOKENIZER_CONFIG).get("auto_map"):
        log(f"{TOKENIZER_CONFIG} asks for code of its own (auto_map), which is never run: tokenizer.json alone is read")
    if sentence_files.has_modules(folder):
        sentence_files.say_what_stays(folder, log)


def find_family(folder: HFFolder) -> tuple[Family, str]:
    """The family of a folder, and the architecture that its configuration names; the bare one where it has modules."""
    model_type, architectures = folder.config.get("model_type"), folder.config.get("architectures")
    of_type = [family for family in FAMILIES if family.model_type == model_type]
    if not of_type:
        known = ", ".join(dict.fromkeys(family.model_type for family in FAMILIES))
        raise UserError(
            f"{folder.path / CONFIG}: model_type {shown(str(model_type))} is not read here (known: {known})"
        )
    classes = ", ".join(name for family in of_type for name in family.architectures)
    if architectures is None:
        raise UserError(
            f"{folder.path / CONFIG} has no architectures, which name the class of the model: add one of {classes}"
        )
    for family in of_type:
        if isinstance(architectures, list) and len(architectures) == 1 and architectures[0] in family.architectures:
            if sentence_files.has_modules(folder) and family.bare:
                return family, next(iter(family.bare))  # what sentence-transformers loads, whatever head the model had
            return family, architectures[0]
    said = ", ".join(map(str, architectures)) if isinstance(architectures, list) else str(architectures)
    raise UserError(
        f"{folder.path / CONFIG}: architectures is {shown(said)}, and of {of_type[0].name} {classes} are read here"
    )


def read_config(
    folder: HFFolder, family: Family, architecture: str, ignore: Sequence[str] = (), log: Log = print
) -> tuple[c.TransformerConfig, tuple[str, ...]]:
    """Our configuration and the names of labels; `UserError` that lists all that does not fit.

    Unknown keys that `ignore` names are told to `log`; a name of `ignore` that is no unknown key is an error.
    """
    given = HFConfig(folder.config, str(folder.path / CONFIG), folder.tensors.keys(), ignore)
    config = family.read(given, architecture)
    given.done()
    if wrong := [key for key in ignore if key not in given.ignored]:
        raise UserError(
            f"{folder.path / CONFIG} has no unknown key {shown(wrong[0])} to ignore: leave it out of --ignore-keys"
        )
    for key, value in given.ignored.items():
        log(f"{key} = {shown(str(value))} of {CONFIG} is ignored, as --ignore-keys asks")
    if isinstance(config.head, c.VectorHead):
        return replace(config, head=sentence_files.read_head(folder, config)), _unused_labels(folder)
    if sentence_files.has_modules(folder):
        raise UserError(
            f"{folder.path} is a sentence encoder ({sentence_files.MODULES}), and sentence encoders of "
            f"{family.name} are not read here; {sentence_files.WITHOUT}"
        )
    if not isinstance(config.head, (c.PositionHead, c.SequenceHead)):
        return config, _unused_labels(folder)
    labels = _labels(folder)
    problem, where = folder.config.get("problem_type"), folder.path / CONFIG
    if isinstance(config.head, c.SequenceHead) and problem not in (None, PROBLEMS[len(labels) == 1]):
        raise UserError(f"{where}: problem_type {shown(str(problem))} is not supported of {len(labels)} labels")
    return replace(config, head=replace(config.head, n_labels=len(labels))), labels


def _unused_labels(folder: HFFolder) -> tuple[str, ...]:
    """Names of labels that a model without labels carries, to be exported again; none where they are the default."""
    try:
        names = _labels(folder)
    except UserError:
        return ()
    return () if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names


def _labels(folder: HFFolder) -> tuple[str, ...]:
    table, where = folder.config.get("id2label"), folder.path / CONFIG
    if table is None:
        n_labels = folder.config.get("num_labels", 2)
        if type(n_labels) is not int or not 1 <= n_labels <= c.MAX_VOCAB:
            raise UserError(f"{where}: num_labels is {shown(str(n_labels))} and must be from 1 to {c.MAX_VOCAB:,}")
        table = {str(i): f"LABEL_{i}" for i in range(n_labels)}
    if not isinstance(table, dict) or sorted(table) != sorted(map(str, range(len(table)))):
        raise UserError(f"{where}: id2label must name the labels 0, 1, 2 …")
    labels = tuple(str(table[str(i)]) for i in range(len(table)))
    if len(set(labels)) < len(labels):
        raise UserError(f"{where}: id2label has a name twice: each number needs its own")
    return labels


def read_weights(
    folder: HFFolder, family: Family, config: c.TransformerConfig, ignore_tensors: Sequence[str] = (), log: Log = print
) -> dict[str, Tensor]:
    """Every tensor of ours from a folder; float64 becomes float32, which is told to `log`.

    `UserError` that lists what is missing, unknown, of another shape, or not finite.
    """
    all_keys, names = require_fit(folder, family, config, ignore_tensors)
    used = {name for key in all_keys for name in key.theirs}
    fixed = family.fixed(config)
    weights: dict[str, Tensor] = {}
    with folder.reading() as reader:
        for key in all_keys:
            theirs = [reader.take(names[name]) for name in key.theirs]
            ours = key.to_ours([x.float() if x.dtype == torch.float64 else x for x in theirs])
            weights |= zip(key.ours, ours, strict=True)
        for name in fixed.keys() & names.keys():
            x, expected = reader.take(names[name]), fixed[name]  # the file may hold it in another precision
            if x.shape != expected.shape or not torch.allclose(x.float(), expected, rtol=0, atol=1e-2):
                raise UserError(f"{folder.path}: {name} holds other numbers than its {CONFIG} gives it")
        for copy, first in family.repeats.items():
            if copy not in names or copy in used or matches(copy, [*ignore_tensors, *family.unread(config)]):
                continue
            while first not in used:
                first = family.repeats[first]
            if not torch.equal(reader.take(names[copy]), reader.take(names[first])):
                untie = "say tie_word_embeddings false if the model has both, or " if config.tie_output else ""
                raise UserError(
                    f"{folder.path}: {copy} must be {first} once more, as {CONFIG} has it, and it holds other numbers: "
                    f"{untie}leave it out with --ignore-tensors {copy}"
                )
    _require_finite(folder, all_keys, weights)
    if n_wide := sum(
        folder.tensors[names[name]].shape.dtype == torch.float64 for key in all_keys for name in key.theirs
    ):
        log(f"{n_wide:,} tensors of float64 are stored as float32")
    return weights


def _require_finite(folder: HFFolder, all_keys: Sequence[Key], weights: Mapping[str, Tensor]) -> None:
    """`UserError` that names the tensors of a folder with NaN or Inf."""
    theirs = {name: ", ".join(key.theirs) for key in all_keys for name in key.ours}
    counts = {name: x.numel() - int(x.isfinite().sum()) for name, x in weights.items()}
    if bad := [f"{theirs[name]} ({n:,} of {weights[name].numel():,} numbers)" for name, n in counts.items() if n]:
        more = f" … and {len(bad) - MAX_LISTED:,} more" if len(bad) > MAX_LISTED else ""
        raise UserError(
            f"{folder.path} has NaN or Inf in its weights, in float32: {'; '.join(bad[:MAX_LISTED])}{more}; the "
            "checkpoint is damaged: fetch it again, or take another one"
        )


def _names_in_files(folder: HFFolder, family: Family, known: Collection[str]) -> dict[str, str]:
    """Today's name of each tensor → its name in the files, which may be old, or lack the prefix of the network."""
    names: dict[str, str] = {}
    for name in folder.tensors:
        today = renamed(name, family.old_names)
        whole = family.prefix + today
        is_bare = today not in known and (whole in known or matches(whole, family.derived))
        today = whole if is_bare else today
        if today in names:
            raise UserError(f"{folder.path}: {shown(names[today])} and {shown(name)} are two names of one tensor")
        names[today] = name
    for copy, first in family.repeats.items():
        if first not in names and copy in names:  # of tensors that are one, a file may hold either
            names[first] = names[copy]
    return names


def require_fit(
    folder: HFFolder, family: Family, config: c.TransformerConfig, ignore_tensors: Sequence[str] = ()
) -> tuple[list[Key], dict[str, str]]:
    """The keys of a configuration, and their names of today → those in the files, by the headers alone.

    `UserError` that lists what is missing, unknown, or of another shape.
    """
    all_keys, shapes = family.keys(config), shapes_of(config)
    others = family.repeats.keys() | family.unread(config).keys() | family.fixed(config).keys()
    used = others | {name for key in all_keys for name in key.theirs}
    names = _names_in_files(folder, family, used)
    problems = []
    for key in all_keys:
        for name, shape in zip(key.theirs, key.shapes_of_theirs(shapes), strict=True):
            if name not in names:
                problems.append(f"{name} is missing")
                continue
            stored = folder.tensors[names[name]].shape
            if stored.shape != shape:
                problems.append(f"{name} has shape {list(stored.shape)} and not {list(shape)}")
            elif not stored.dtype.is_floating_point:
                problems.append(f"{name} is of {stored.dtype}, and floats are needed".replace("torch.", ""))
    unknown = [name for name in names if name not in used and not matches(name, [*family.derived, *ignore_tensors])]
    problems += [f"{shown(name)} has no place in this model" for name in unknown]
    if problems:
        more = f" … and {len(problems) - MAX_LISTED:,} more" if len(problems) > MAX_LISTED else ""
        hint = f"; --ignore-tensors {shown(unknown[0])} leaves a tensor out, if it is not needed" if unknown else ""
        raise UserError(f"{folder.path} does not fit its own {CONFIG}: {'; '.join(problems[:MAX_LISTED])}{more}{hint}")
    return all_keys, names


def _with_special_ids(
    config: c.TransformerConfig, folder: HFFolder, tokenizer: Tokenizer, log: Log
) -> c.TransformerConfig:
    """The ids of special tokens, as `config.json` gives them, or as the tokenizer does.

    Where several tokens end a text, the tokenizer's own is kept, and `log` is told. Of a decoder alone
    `decoder_start_id` is what the tokenizer puts before a text: transformers puts nothing else there.
    """
    found: dict[str, Any] = {}
    for name in c.SPECIAL_IDS:
        key = name.removesuffix("_id") + "_token_id"
        both = (folder.config.get(key), folder.table(GENERATION).get(key))
        said = both[1] if both[0] is None else both[0]
        own = getattr(tokenizer, name, None)
        if isinstance(said, list):  # several ends: the tokenizer's own, or the first
            said = own if own in said else next(iter(said), None)
        if said is not None and type(said) is not int:
            raise UserError(f"{folder.path / CONFIG}: {key} is {shown(str(said))}, and an id is a whole number")
        if said is not None and not 0 <= said < config.vocab_size:  # -1, or the default of a larger vocabulary
            log(f"{key} {said} is no id of the vocabulary, and is left out")
            said = None
        value = own if said is None else said
        for ends in both:
            if isinstance(ends, list) and any(end != value for end in ends):
                log(f"of the tokens {ends} that end a text ({key}) only {value} does so here")
                break
        found[name] = value
    if config.encoder is None:
        found["decoder_start_id"] = next(reversed(tokenizer.frames.prompt.before), None)
    return replace(config, **found)


def as_learned(run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run:
    """The run with the task of its network, so that `generate`, `fill`, `translate`, … and `train --init` know it."""
    tasks = [task for task in map(task_of_kind, HOMES) if isinstance(task, TakesOver)]
    found = [taken for task in tasks if (taken := task.taken_over(run, tokenizer, labels)) is not None]
    if len(found) != 1:
        raise UserError(f"no task of glassformer is known for the network of {run.name!r} ({run.architecture})")
    return found[0]
