"""Runs for the user's own data, with a model, a tokenizer and a training that suit the kind and the amount of the data.

`docs/how-to/choose-sizes.md` shows the sizes that the rule gives.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from glassformer.common import files
from glassformer.common.errors import UserError, warn
from glassformer.config import recipes
from glassformer.config import run as r
from glassformer.config import transformer as c
from glassformer.config.presets import preset
from glassformer.config.sizes import learning_rate, sized
from glassformer.config.train import AUTO, EarlyStopping, LinearSchedule, MuonConfig, TrainConfig
from glassformer.data import addresses
from glassformer.data.in_memory import address_of, rows_of
from glassformer.data.kinds import require_readable
from glassformer.data.recognition import READING, SETTINGS, Recognised, aligned, recognise, recognise_rows
from glassformer.data.recognition import Kind as Kind
from glassformer.data.records import Request
from glassformer.data.text_files import n_bytes
from glassformer.data.texts import find_sources

N_EVALUATIONS = 8
ROWS = 16
"""Rows of a step on texts: the context grows with the size."""
WIDTH = 64
MAX_JOINED = 1 << 15
"""Maximum total length of the names of several sources, in characters."""


D = TypeVar("D", bound=r.TextData | r.PairData | r.LabelData | r.ConversationData)

SMALL = 1 << 20
"""Bytes of data of the lowest level; each further level has at most eight times as many."""


class Rule(NamedTuple):
    """The settings of a kind of data; the size S of a run is in `config.sizes`."""

    sizes: tuple[int, ...]
    """Size by level; each further level adds 2."""
    vocab_size: int
    """Vocabulary / S²; 0 = characters."""
    steps: int
    """Optimizer steps / S²."""
    batch: int
    """Tokens of a step / S, padding included."""
    passes: int
    """Most tokens of all steps / bytes of the data: on little data, more steps overfit."""
    dropouts: tuple[float, ...]
    """Dropout by level; the last one is also that of the levels above."""
    rate: float = 1.0
    """Learning rate of Muon / that of the dial."""
    others: float = 1.0
    """Learning rate of AdamW / that of Muon."""
    bytes_per_entry: int = 96
    """Fewest bytes of data for each entry of the vocabulary: with fewer, most entries are seen too rarely."""


TEXT = Rule((4, 4, 5, 7), 128, 100, 512, 5, (0.2, 0.1, 0.0), bytes_per_entry=192)
CHARACTER_PAIRS = Rule((2, 3, 4, 6), 0, 375, 512, 20, (0.0, 0.1))
SENTENCE_PAIRS = Rule((3, 4, 5, 7), 512, 125, 1024, 8, (0.3, 0.3, 0.1), rate=2.0, others=0.4)
CLASSES = Rule((2, 3, 4, 6), 1024, 125, 1024, 8, (0.3, 0.2, 0.1), others=0.2)
TAGS = Rule((2, 3, 4, 6), 512, 150, 1024, 8, (0.1,), others=0.2)
FEWEST_ENTRIES = 512
LITTLE = 1 << 17
"""Most bytes of data for which a step has half the tokens: more and smaller steps are better."""
FEWEST_STEPS = 80


class Sizes(NamedTuple):
    """The sizes for an amount of data."""

    size: int
    vocab_size: int
    steps: int
    batch: int
    dropout: float
    rate: float
    others: float


def sizes(rule: Rule, n_bytes: float) -> Sizes:
    """Return the sizes for an amount of data.

    The level is ⌈log₈(bytes / 1 MiB)⌉, at least 0. Little data has fewer steps, a smaller vocabulary
    and smaller steps.

    >>> [sizes(TEXT, n_bytes).size for n_bytes in (1000, 1 << 20, 8 << 20, 64 << 20, 1 << 32)]
    [4, 4, 4, 5, 9]
    """
    level = max(0, math.ceil(math.log(max(1, n_bytes) / SMALL, 8)))
    known = min(level, len(rule.sizes) - 1)
    size = rule.sizes[known] + 2 * (level - known)
    entries = min(rule.vocab_size * size**2, 1 << 15, max(FEWEST_ENTRIES, int(n_bytes) // rule.bytes_per_entry))
    batch = rule.batch * size // (2 if n_bytes <= LITTLE else 1)
    steps = max(FEWEST_STEPS, min(rule.steps * size**2, round(rule.passes * n_bytes / batch)))
    dropout = rule.dropouts[min(level, len(rule.dropouts) - 1)]
    return Sizes(size, entries, steps, batch, dropout, rule.rate, rule.others)


MAX_WORDS = 2.0
"""Pairs are read character by character if the values of one side have on average at most this number of words, and at
most `MAX_CHARACTERS` characters."""
MAX_CHARACTERS = 32.0
"""Maximum mean number of characters of values that are read character by character (see `MAX_WORDS`)."""


def run_of(
    *sources: str | Path, kind: Kind | None = None, changes: Mapping[str, Any] | None = None
) -> tuple[r.Run, str]:
    """Return the run that `glassformer train SOURCE…` starts, and a note on how own data is recognised, else ''.

    The sources are the name of a recipe, a TOML file, or own data (`run_for`): a file, a folder, a pattern such as
    `src/**/*.py`, or the two files of pairs. Only a text without any separator can name a recipe: `./python-docs` and
    `Path("python-docs")` are files. Without sources, the two files of pairs are the settings `source` and `target` in
    `changes`. Settings in `changes` that describe the data (`recognition.SETTINGS`), such as `data.text_field`, are
    used to recognise it. No other change is applied.

    >>> run, evidence = run_of("copy-task")
    >>> run.name
    'copy-task'
    """
    if len(sources) == 1:
        [source] = sources
        if recipes.is_written(source):
            if kind is not None:
                raise UserError(f"{source} is a recipe or a TOML file, which has a kind of data: leave out kind")
            return recipes.load(source), ""
        _require_place(source)
    elif not sources:
        named = _by_short_name(changes, ("source", "target"))
        if len(named) < 2:
            raise UserError("no data is given: give a recipe, a file, data, or source and target (two files)")
        sources = (named["source"], named["target"])
    return run_for(sources, kind, _by_short_name(changes, SETTINGS))


def _require_place(source: str | Path) -> None:
    """Raise `UserError` for a source that is neither the name of a recipe nor a file or an address."""
    name = str(source)
    if "\n" in name or files.is_no_path(name):
        raise UserError(
            f"expected a recipe or a file, got a text of {len(name):,} characters: to train on a text in memory, give "
            "a list, as in glassformer.train([text])"
        )
    if files.exists(files.as_path(source, "source")):
        return
    if isinstance(source, str) and not re.search(r"[/\\.:*?~]", source):
        raise recipes.unknown(name)


def _by_short_name(changes: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, str]:
    """Return the values of the settings `names` in `changes`, whose keys may be short or dotted."""
    short = {
        key.replace("-", "_").rpartition(".")[2]: " ".join(value) if isinstance(value, (list, tuple)) else str(value)
        for key, value in (changes or {}).items()
    }
    return {name: short[name] for name in names if name in short}


def note(evidence: str) -> None:
    """Print the note on how own data was recognised, if there is one; of several processes, only the first prints."""
    if evidence and os.environ.get("RANK", "0") == "0":
        warn(evidence)


def run_for(
    sources: Sequence[str | Path], kind: Kind | None = None, given: Mapping[str, str] | None = None
) -> tuple[r.Run, str]:
    """Build the run for one file, folder, pattern or dataset, or for the two files of pairs.

    Returns the run, and a note with the kind of the data and the reason for it; '' for files of text. `given` are
    settings that describe the data (`recognition.SETTINGS`). Raises `UserError` for a missing file or an unclear kind.
    """
    paths = [str(files.as_path(one, "source")) if addresses.is_file(str(one)) else str(one) for one in sources]
    given = given or {}
    if len(paths) == 2 and kind in ("pairs", None) and all(map(addresses.is_single_file, paths)):
        recognised = aligned(paths[0], paths[1], given.get("encoding", "utf-8").split())
    else:
        recognised = recognise(paths[0] if len(paths) == 1 else _joined(paths, kind), kind, given)
    recognised = replace(recognised, data=_as_given(recognised.data, given))
    run = run_of_data(_name_of(paths[0]), recognised, _n_bytes(recognised.data))
    return run, recognised.evidence and f"{' and '.join(paths)}: {recognised.evidence}{_by_character(run)}"


def _joined(paths: Sequence[str], kind: Kind | None) -> str:
    """Return the pattern for several sources of text."""
    if kind not in ("text", None):
        raise UserError(f"{len(paths)} sources are texts, not {kind}: put the rows in one file")
    for path in paths:
        source = addresses.source_of(path)
        if not addresses.is_file(path) or (source is not None and "text" not in source.kinds):
            raise UserError(f"several sources are texts, and {path} is not one: give one source, or text files only")
    if sum(map(len, paths)) > MAX_JOINED:
        raise UserError(
            f'{len(paths):,} sources are too many: give their folder or a pattern in quotes, as "src/**/*.py"'
        )
    return addresses.joined(paths)


def _as_given(data: D, given: Mapping[str, str]) -> D:
    """Return `data` with the values in `given` of the settings that decide how files are read (`READING`)."""
    changes: dict[str, Any] = {name: given[name] for name in READING if name in given and hasattr(data, name)}
    if "encoding" in changes:
        changes["encoding"] = tuple(changes["encoding"].split())
    return replace(data, **changes)


def run_in_memory(
    data: Iterable[object], kind: Kind | None = None, changes: Mapping[str, Any] | None = None
) -> tuple[r.Run, str, str]:
    """Build the run for data in memory; return the run, its records as a jsonl text, and a note on the recognised kind.

    The run has no path until the records are in a file. Raises `UserError` for a record that cannot be read.
    """
    rows = rows_of(data)
    recognised, lines = recognise_rows(rows, kind, _by_short_name(changes, SETTINGS))
    with address_of(lines) as address:
        require_readable(replace(recognised.data, path=address))
    text = "".join(f"{line}\n" for line in lines)
    run = run_of_data(recognised.data.kind, recognised, len(text.encode()))
    return (
        replace(run, data=replace(run.data, path=None)),
        text,
        f"{len(rows):,} records are {recognised.evidence}{_by_character(run)}",
    )


def _by_character(run: r.Run) -> str:
    """Return the end of the note for a run that reads short texts by character; '' for another run."""
    if run.tokenizer.scheme != "char":
        return ""
    return ", which are short and are read by character (set tokenizer.scheme and tokenizer.vocab_size for tokens)"


def run_of_data(name: str, recognised: Recognised, n_bytes: int) -> r.Run:
    """Build the run for data of a known kind and amount."""
    if isinstance(data := recognised.data, r.PairData):
        return pair_run(name, data, n_bytes, of_characters=any(map(_are_words, recognised.rows.values())))
    builders: Mapping[str, Callable[[str, Any, int], r.Run]] = {
        "text": text_run,
        "labels": label_run,
        "conversations": conversation_run,
    }
    return builders[data.kind](name, data, n_bytes)


def _name_of(address: str) -> str:
    if not addresses.is_file(address):
        return re.sub(r"\W+", "-", address.partition(":")[2]).strip("-")
    if addresses.is_pattern(address):
        return files.name_of(addresses.split_pattern(addresses.expanded(address)[0])[0])
    return files.name_of(Path(address))


def _n_bytes(data: r.TextData | r.PairData | r.LabelData | r.ConversationData) -> int:
    """Return the size of the data: of its files in bytes, or of its texts if they are compressed or not in files."""
    if isinstance(data, r.PairData) and data.path is None:
        return sum(n_bytes(Path(str(side))) for side in (data.source, data.target))
    address = str(data.path)
    if isinstance(data, r.TextData):
        return sum(source.n_bytes() for source in find_sources([address], data))
    if addresses.is_single_file(address) and (addresses.source_of(address) or addresses.BY_CONTENT).is_plain:
        return n_bytes(Path(address))
    rows = addresses.records(address, Request("pairs", (), ""))
    return sum(len(str(value)) for row in rows for value in row.fields.values())


def _are_words(values: Sequence[str]) -> bool:
    """Return True if the values have on average at most `MAX_WORDS` words and `MAX_CHARACTERS` characters.

    >>> _are_words(["2026-11-21", "K AE T"]), _are_words(["a house in the woods"])
    (True, False)
    """
    texts = [str(value) for value in values] or [""]
    n_words, n_characters = (sum(map(count, texts)) / len(texts) for count in (lambda t: len(t.split()), len))
    return n_words <= MAX_WORDS and n_characters <= MAX_CHARACTERS


def text_run(name: str, data: r.TextData, n_bytes: int) -> r.Run:
    """Build a run for texts of `n_bytes`: a language model.

    The training takes 1 to 2 minutes on two cores for a short text, and about 15 for tens of MB. Use a GPU for more.
    """
    found = sizes(TEXT, n_bytes)
    model = replace(
        preset("modern-mini"),
        max_len=found.batch // ROWS,
        tie_output=True,
        embedding_dropout=found.dropout,
        residual_dropout=found.dropout,
        init=c.NormalInit(),
    )
    generation = r.GenerationConfig(temperature=0.8, top_k=50)
    return _run(name, found, model, data, replace(_train(found), batch_size=ROWS), generation=generation)


def conversation_run(name: str, data: r.ConversationData, n_bytes: int) -> r.Run:
    """Build a run for conversations of `n_bytes`: a language model that answers.

    For a model that knows more than these conversations, train with `--init` from a language model instead.
    """
    run = text_run(name, r.TextData(), n_bytes)
    context = 2 * run.model.max_len
    return replace(
        run,
        model=replace(run.model, max_len=context),
        data=replace(data, batch_tokens=ROWS * context),
        objective=r.ConversationConfig(),
        train=replace(run.train, batch_size=TrainConfig().batch_size),
        generation=r.GenerationConfig(temperature=0.3),
    )


def pair_run(name: str, data: r.PairData, n_bytes: int, *, of_characters: bool) -> r.Run:
    """Build a run for pairs of `n_bytes`: a Transformer with an encoder and a decoder."""
    rule, smoothing, generation, metric = SENTENCE_PAIRS, 0.1, r.BeamConfig(beam=4, max_ratio=2.0), ""
    if of_characters:
        rule, smoothing, generation, metric = CHARACTER_PAIRS, 0.0, r.BeamConfig(beam=1, max_ratio=0.0), "exact_match"
    found = sizes(rule, n_bytes)
    stack = c.Stack(1, 4, d_ff=2 * WIDTH)
    model = replace(
        _model(found, encoder=stack, decoder=stack),
        share_embeddings=not of_characters,
        tie_output=not of_characters,
        embedding_scale=0.0,
    )
    data, objective = replace(data, batch_tokens=found.batch), r.Seq2SeqConfig(label_smoothing=smoothing)
    return _run(name, found, model, data, _train(found, metric), objective=objective, generation=generation)


def label_run(name: str, data: r.LabelData, n_bytes: int) -> r.Run:
    """Build a run for labelled texts of `n_bytes`: a Transformer encoder."""
    rule, metric = CLASSES, AUTO
    head: c.SequenceHead | c.PositionHead = c.SequenceHead(pooling="mean")
    objective: r.ClassificationConfig | r.TaggingConfig = r.ClassificationConfig(label_smoothing=0.0)
    if data.outputs == "classes":
        objective = r.ClassificationConfig(label_smoothing=0.1)
    elif data.outputs == "tags":
        rule, head, objective = TAGS, c.PositionHead(), r.TaggingConfig()
    elif data.outputs == "regression":
        metric = ""
    found = sizes(rule, n_bytes)
    model = replace(_model(found, encoder=c.Stack(1, 4, d_ff=4 * WIDTH)), head=head)
    if data.second_field is not None:
        model = replace(model, n_token_types=2)
    data = replace(data, batch_tokens=found.batch)
    return _run(name, found, model, data, _train(found, metric), objective=objective)


def _model(found: Sizes, *, encoder: c.Stack, decoder: c.Stack | None = None) -> c.TransformerConfig:
    return c.TransformerConfig(
        encoder=encoder,
        decoder=decoder,
        d_model=WIDTH,
        max_len=256,
        norm="rmsnorm",
        activation="gelu",
        qkv_bias=False,
        attn_out_bias=False,
        ff_bias=False,
        embedding_dropout=found.dropout,
        residual_dropout=found.dropout,
        positions=c.RotaryPositions(),
        init=c.NormalInit(0.04),
    )


def _run(
    name: str, found: Sizes, model: c.TransformerConfig, data: r.DataConfig, train: TrainConfig, **others: Any
) -> r.Run:
    """Return a run with a tokenizer of the vocabulary, and the model at the size, that the amount of data decides."""
    tokenizer = r.TokenizerConfig(vocab_size=found.vocab_size, scheme="byte" if found.vocab_size else "char")
    run = r.Run(name, model=model, tokenizer=tokenizer, data=data, **others)
    return replace(run, model=sized(run, found.size).model, train=train)


def _train(found: Sizes, metric: str = "") -> TrainConfig:
    """Return the training; a `metric` selects the checkpoint, with a patience that is too large to stop the run."""
    rate = float(f"{found.rate * learning_rate(found.size):.2g}")
    train = TrainConfig(
        max_steps=found.steps,
        eval_every=found.steps // N_EVALUATIONS,
        optimizer=MuonConfig(rate, adamw_learning_rate=float(f"{rate * found.others:.2g}")),
        schedule=LinearSchedule(warmup_steps=found.steps // 20),
    )
    if metric:
        return replace(train, early_stopping=EarlyStopping(metric, patience=N_EVALUATIONS + 1))
    return train
