"""Inputs and outputs of verbs: models, texts, and output files, which never replace an input."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from glassformer.apps.cli.arguments import QUOTE, File, read_stdin
from glassformer.apps.cli.progress import err
from glassformer.common import files
from glassformer.common.errors import UserError, quoted, say_unknown
from glassformer.common.figures import figure_paths
from glassformer.config.run import Run
from glassformer.config.schema import checked, setting
from glassformer.config.train import DEVICE, DEVICES
from glassformer.data.addresses import is_file, is_pattern, local_path, reads
from glassformer.data.formats import lines
from glassformer.data.kinds import look_at
from glassformer.data.texts import find_sources
from glassformer.store import checkpoint
from glassformer.store.manifest import NAME as MANIFEST
from glassformer.store.model_directory import own_paths, read_run
from glassformer.tasks.requirements import require_ensemble, require_verb

if TYPE_CHECKING:
    from glassformer.model import Model

T = TypeVar("T")
Texted = Annotated[
    str,
    "DIR… [TEXT]",
    "Model directories (several form an ensemble), then the text: the last argument if it is not a folder.",
]
"""Model directories, then an optional text (`directories_and_text`)."""


def no_effect(option: str, why: str) -> UserError:
    """Return the error for an option that has no effect; `why` is the reason, and perhaps what to do instead."""
    return UserError(f"--{option.replace('_', '-')} has no effect{why}")


def require_effect(model: "Model", search: Mapping[str, Any]) -> None:
    """Raise `UserError` for an option of beam search that has no effect with a beam of 1."""
    for option in ("length_penalty", "early_stopping"):
        if option in search and model.translator.beam(search).beam == 1:
            raise no_effect(option, " with a beam of 1, a greedy search: remove it, or set --beam above 1")


@checked
class Stored:
    """Checkpoint and device."""

    section: ClassVar[str] = ""
    checkpoint: int | None = setting(None, "use the checkpoint of this step")
    device: str = setting("auto", DEVICES, DEVICE)

    def run(self, directory: str | Path) -> Run:
        """Return the run of a stored model; raise `UserError` for a directory that is missing or damaged."""
        return read_run(checkpoint.find(files.as_path(directory, "the model directory"), self.checkpoint))

    def find(self, directories: Sequence[str | Path]) -> None:
        """Raise `UserError` for a model directory that is missing: before any text is read or typed."""
        for directory in directories:
            checkpoint.find(Path(directory), self.checkpoint)

    def require(self, directories: Sequence[str | Path], verb: str) -> list[Run]:
        """Return the runs of stored models; raise `UserError` if one is missing, damaged, or not trained for the verb.

        This does not import torch.
        """
        if not directories:
            raise UserError("give at least one model directory")
        runs = [self.run(directory) for directory in directories]
        for directory, run in zip(directories, runs, strict=True):
            require_verb(run, str(directory), verb)
        return runs

    def model(self, directory: str | Path) -> "Model":
        """Load the model of a directory with these options."""
        from glassformer import api

        return api.load(directory, step=self.checkpoint, device=self.device, dtype=getattr(self, "dtype", None))


@checked
class Loading(Stored):
    """Checkpoint, device and precision."""

    dtype: Literal["fp32", "bf16", "fp16"] | None = setting(
        None, "type of the weights, by default fp32; evaluate uses the training precision by default"
    )

    def ensemble(self, directories: Sequence[str | Path], verb: str) -> "Model":
        """Load one model, or several as an ensemble. Raises `UserError` if a model was not trained for the verb."""
        first, *others = self.require(directories, verb)
        if not others:
            return self.model(directories[0])
        require_ensemble(first, str(directories[0]))
        from glassformer import api

        return api.ensemble([self.model(directory) for directory in directories])


@checked
class Drafting(Loading):
    """Checkpoint, device, precision and draft model."""

    draft: Path | None = setting(
        None,
        "directory of a smaller model with the same tokenizer; it proposes --draft-tokens tokens per step",
    )

    def require_draft(self, sampling: Mapping[str, Any]) -> None:
        """Raise `UserError` for draft tokens without a draft model, and for a draft model that cannot generate."""
        if self.draft is not None:
            Stored().require([self.draft], "generate")
        elif "draft_tokens" in sampling:
            raise UserError("--draft-tokens is for --draft DIR; --prompt-lookup K has its own number of tokens, K")

    def draft_model(self) -> "dict[str, Model]":
        """Load the draft model; return it as a setting of a generation. Without a draft model, return no setting."""
        if self.draft is None:
            return {}
        return {"draft": replace(self, checkpoint=None).model(self.draft)}


@dataclass(frozen=True)
class TextOrPair:
    """Text for a model with one stack, or source and target for an encoder-decoder."""

    text: str | None = setting(None, "The input of a model with one stack.")
    source: str | None = setting(None, "The source text of an encoder-decoder.")
    target: str | None = setting(None, "The target text of an encoder-decoder; by default the model's own output.")

    def named(self, text: str | None) -> dict[str, str | None]:
        """Return the keyword arguments for `capture`; `text` is the text that is given without an option."""
        return {"text": same_text(text, self.text, "--text"), "source": self.source, "target": self.target}


@dataclass(frozen=True)
class Measured:
    """Evaluation data, by default the validation data of each run."""

    data__path: File | None = setting(None, "a text, pairs in one file, or labelled texts; all of the file is used")
    data__source: File | None = setting(None, "the source side of pairs: a text file with one sentence per line")
    data__target: File | None = setting(None, "the target side: line i is the target of source line i")

    @property
    def places(self) -> dict[str, Any]:
        """The keyword arguments for the methods of a model."""
        return {"path": self.data__path, "source": self.data__source, "target": self.data__target}

    def look(self, runs: Sequence[Run]) -> None:
        """Raise `UserError` for data on which a model of one of the runs cannot be measured."""
        given: Any = {name: place for name, place in self.places.items() if place is not None}
        for data in (run.data for run in runs):
            if given and set(given) <= set(vars(data)):  # the task refuses other fields
                own = [name for name in vars(data) if name.endswith(("path", "source", "target"))]
                data = replace(data, **dict.fromkeys(own) | given)
            if getattr(data, "path", None) is not None or getattr(data, "source", None) is not None:
                look_at(data)

    @property
    def name(self) -> str:
        return " and ".join(str(path) for path in self.places.values() if path) or "validation data of the run"


def directories_and_text(words: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """Split words into model directories and an optional text: the last word, if it is not a folder.

    >>> directories_and_text([".", ".", "a text"])
    (['.', '.'], 'a text')
    >>> directories_and_text([".", "."])
    (['.', '.'], None)
    """
    if not words:
        raise UserError("give at least one model directory")
    has_text = len(words) > 1 and not os.path.isdir(words[-1])  # Path.is_dir raises an error for a long text
    if not has_text:
        return words, None
    *directories, text = words
    for directory in directories[1:]:
        if not os.path.isdir(directory):
            raise UserError(f"no such model directory: {directory}; {QUOTE}")
    return directories, text


@dataclass(frozen=True)
class GivenTexts:
    """Input texts, one per line, and their source. A blank line gives an empty result, so that results stay aligned."""

    texts: list[str]
    source: str | None
    """A file name or "standard input"; None for a text on the command line."""

    @classmethod
    def read(cls, text: str | None, input: str | None) -> "GivenTexts":
        """Return the text of the command line, or the lines of a file or standard input; raise `UserError` for both."""
        require_one(text, input, "--input")
        if text is not None:
            return cls([text], None)
        return cls(lines(input_text(input)), "standard input" if input in (None, "-") else input)

    @property
    def places(self) -> list[int]:
        """The places of the texts that are not blank, from 0."""
        return [place for place, text in enumerate(self.texts) if text.strip()]

    def each(self, function: Callable[[str], T]) -> Iterator[T]:
        """Yield the value of a function for each text that is not blank; put the file and line before a `UserError`."""
        for place in self.places:
            try:
                yield function(self.texts[place])
            except UserError as error:
                if self.source is None:
                    raise
                raise UserError(f"{self.source}:{place + 1}: {error}") from error

    def results(self, values: Iterable[T]) -> Iterator[T | None]:
        """Yield a result for every text, None for a blank one; `values` has the results of the others, in order."""
        of_texts = iter(values)
        for text in self.texts:
            yield next(of_texts) if text.strip() else None


@dataclass(frozen=True)
class Texts:
    """Input."""

    is_usual: ClassVar[bool] = True
    input: File | None = setting(
        None,
        "A file with one text per line, or - for standard input, which is the default if no text is given. A blank "
        "line gives an empty result.",
    )

    def read(self, text: str | None) -> GivenTexts:
        """Return the given texts; raise `UserError` if all of them are blank. An empty file has no texts."""
        given = GivenTexts.read(text, self.input)
        if given.texts and not given.places:
            raise UserError("no text given: give a text, --input FILE, or lines on standard input")
        return given


@dataclass(frozen=True)
class TextsToJson(Texts):
    """Input and output."""

    json_: bool = setting(False, "Print one JSON object per text.")


def input_text(input: str | None) -> str:
    """Return the content of the file of `--input`, or of standard input for - and None."""
    return read_stdin() if input in (None, "-") else files.read_text(files.as_path(input, "--input"))


def typed_lines(invitation: str) -> Iterator[str]:
    """Yield the lines that are typed on a terminal, until Ctrl-D."""
    err(invitation)
    while True:
        try:
            line = input("> ")
        except EOFError:
            err("")
            return
        yield line


@contextmanager
def reported_errors() -> Iterator[None]:
    """Print a `UserError` of the block, and continue: a mistake does not end a conversation."""
    try:
        yield
        say_unknown()
    except UserError as error:
        err(f"glassformer: {error}")


def require_one(text: str | None, file: object, option: str) -> None:
    """Raise `UserError` if both a text on the command line and a file, or `-`, are given."""
    if text is not None and file is not None:
        raise UserError(f"{quoted(text)} is read as a text: give a text or {option} FILE, not both")


def same_text(text: str | None, of_option: str | None, option: str) -> str | None:
    """Return the text that is given as an argument or with an option; raise `UserError` if both are given."""
    if text is not None and of_option is not None:
        raise UserError(f"give the text or {option}, not both")
    return text if of_option is None else of_option


def require_output(output: Path, inputs: Iterable[str | Path | None]) -> None:
    """Raise `UserError` if a file cannot be written, or is one of the inputs on the command line.

    An input is a file, a model directory, a run folder, or a folder of texts. The output must not be one of the files
    that are read from a folder: its model files, its texts, or all files of a local folder after `hf:`. None, - and
    data that is not on this disk are ignored.
    """
    files.require_file_place(output)
    for given in inputs:
        if given is None or str(given) == "-":
            continue
        place = local_path(str(given), "input")
        if place is not None:
            files.require_apart(output, _read_in(place, output) if is_file(str(given)) else [place])


def require_picture(out: Path, inputs: Iterable[str | Path | None]) -> None:
    """Raise `UserError` if the files of a plot cannot be written, or are inputs (`require_output`)."""
    for path in figure_paths(out):
        require_output(path, inputs)


def _read_in(place: Path, output: Path) -> list[Path]:
    """Return the files that a verb reads from an input; the folder itself if the output would be one of its texts."""
    if is_pattern(place):
        return [output] if reads(place, output) else []
    if not files.exists(place) or not place.is_dir():
        return [place]
    if (place / MANIFEST).exists():
        return own_paths(place)
    if reads(place, output):
        return [place]
    with suppress(UserError):  # a folder without texts: the verb raises this error
        return [source.path for source in find_sources([place]) if source.path is not None]
    return []
