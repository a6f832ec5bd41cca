"""Inputs and outputs of verbs: models, texts, and output files, which never replace an input."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from glassformer import files
from glassformer.cli.arguments import QUOTE, File, read_stdin
from glassformer.config.schema import checked, setting
from glassformer.config.train import DEVICE, DEVICES
from glassformer.data.addresses import is_file, is_pattern, local_path, reads
from glassformer.data.first_look import look_at
from glassformer.data.formats import lines
from glassformer.data.texts import find_sources
from glassformer.errors import UserError, quoted
from glassformer.store import checkpoint
from glassformer.store.manifest import NAME as MANIFEST
from glassformer.store.model_directory import own_paths, read_run
from glassformer.tasks.requirements import require_verb

if TYPE_CHECKING:
    from glassformer.model import Model

Texted = Annotated[str, "DIR… [TEXT]"]
"""Model directories, then an optional text (`directories_and_text`)."""


def require_effect(model: "Model", search: Mapping[str, Any]) -> None:
    """Raise `UserError` for an option of beam search that has no effect with a beam of 1."""
    given = [name for name in ("length_penalty", "length_penalty_type", "early_stopping") if name in search]
    if given and model.translator.beam(search).beam == 1:
        raise UserError(
            f"--{given[0].replace('_', '-')} has no effect with a beam of 1, a greedy search: remove it, or set --beam "
            "above 1"
        )


@checked
class Stored:
    """Checkpoint and device."""

    section: ClassVar[str] = ""
    checkpoint: int | None = setting(None, "use the checkpoint of this step")
    device: str = setting("auto", DEVICES, DEVICE)

    def model(self, directory: str | Path) -> "Model":
        """Load the model of a directory with these options."""
        from glassformer import api

        return api.load(directory, step=self.checkpoint, device=self.device)


@checked
class Loading(Stored):
    """Checkpoint, device and precision."""

    dtype: Literal["fp32", "bf16", "fp16", "int8"] | None = setting(
        None, "type of the weights, by default fp32; evaluate uses the training precision by default"
    )
    matmul_precision: Literal["highest", "high", "medium"] | None = setting(
        None, "fp32 matrix products: highest = fp32; high = TF32 on CUDA; medium = also bf16; implies --dtype fp32"
    )

    def model(self, directory: str | Path) -> "Model":
        """Load the model of a directory with these options."""
        from glassformer import api

        if self.matmul_precision is None:
            return api.load(directory, step=self.checkpoint, device=self.device, dtype=self.dtype)
        if self.dtype not in (None, "fp32"):
            raise UserError(f"--matmul-precision needs fp32 weights, got --dtype {self.dtype}; give only one option")
        checkpoint.find(Path(directory), self.checkpoint)
        import torch

        torch.set_float32_matmul_precision(self.matmul_precision)
        return api.load(directory, step=self.checkpoint, device=self.device, dtype="fp32")

    def require(self, directories: Sequence[str | Path], verb: str) -> None:
        """Raise `UserError` for a directory that is missing or damaged, or whose model has not learned the verb."""
        paths = [checkpoint.find(Path(directory), self.checkpoint) for directory in directories]
        for directory, path in zip(directories, paths, strict=True):
            require_verb(read_run(path), str(directory), verb)

    def ensemble(self, directories: Sequence[str | Path]) -> "Model":
        """Load one model, or an ensemble of several models."""
        from glassformer import api

        for directory in directories:
            checkpoint.find(Path(directory), self.checkpoint)
        return api.ensemble([self.model(directory) for directory in directories])


@dataclass(frozen=True)
class TextOrPair:
    """Text for a model with one stack, or source and target for an encoder-decoder."""

    text: str | None = setting(None, "The input of a model with one stack.")
    source: str | None = setting(None, "The source text of an encoder-decoder.")
    target: str | None = setting(None, "The target text of an encoder-decoder; by default the model's own output.")

    def named(self, text: str | None) -> dict[str, Any]:
        """Return the keyword arguments for `capture`; `text` is the text that is given without an option."""
        text = same_text(text, self.text, "--text")
        if (text is None) == (self.source is None):
            raise UserError("give a text for a model with one stack, or --source TEXT for an encoder-decoder")
        if text is not None and self.target is not None:
            raise UserError("--target needs --source; a model with one stack takes only a text")
        return {"text": text, "source": self.source, "target": self.target}


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

    def look(self, directories: Sequence[str | Path], step: int | None = None) -> None:
        """Raise `UserError` for a missing model directory, and for data from which it cannot be measured."""
        given: Any = {name: place for name, place in self.places.items() if place is not None}
        for directory in directories:
            data = read_run(checkpoint.find(Path(directory), step)).data
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

    @property
    def filled(self) -> dict[int, str]:
        """The texts that are not blank, by their places from 0."""
        return {place: text for place, text in enumerate(self.texts) if text.strip()}

    @contextmanager
    def at(self, place: int) -> Iterator[None]:
        """Put the place of a text, such as `notes.txt:3: `, before the message of any `UserError` of the block."""
        try:
            yield
        except UserError as error:
            raise UserError(str(error) if self.source is None else f"{self.source}:{place + 1}: {error}") from error


def require_one(text: str | None, file: object, option: str) -> None:
    """Raise `UserError` if both a text on the command line and a file, or `-`, are given."""
    if text is not None and file is not None:
        raise UserError(f"{quoted(text)} is read as a text: give a text or {option} FILE, not both")


def same_text(text: str | None, of_option: str | None, option: str) -> str | None:
    """Return the text that is given as an argument or with an option; raise `UserError` if both are given."""
    if text is not None and of_option is not None:
        raise UserError(f"give the text or {option}, not both")
    return text if of_option is None else of_option


def given_texts(text: str | None, input: str | None) -> GivenTexts:
    """Return the text of the command line, or the lines of a file or of standard input; an empty file has no lines.

    Raises `UserError` if both are given, and if all lines are blank.
    """
    require_one(text, input, "--input")
    if text is not None:
        found = GivenTexts([text], None)
    elif input in (None, "-"):
        found = GivenTexts(lines(read_stdin()), "standard input")
    else:
        found = GivenTexts(lines(files.read_text(files.as_path(input, "--input"))), str(input))
    if found.texts and not found.filled:
        raise UserError("no text given: give a text, --input FILE, or lines on standard input")
    return found


def require_output(output: Path, inputs: Iterable[str | Path | None]) -> None:
    """Raise `UserError` if a file cannot be written, or is one of the inputs on the command line.

    An input is a file, a model directory or run folder (checked by its own files), or a folder of texts (checked by its
    texts). Of a local folder after `hf:`, all files count. None, - and data that is
    not on this disk are ignored.
    """
    files.require_file_place(output)
    for given in inputs:
        if given is None or str(given) == "-":
            continue
        place = local_path(str(given), "input")
        if place is not None:
            files.require_apart(output, _read_in(place, output) if is_file(str(given)) else [place])


def _read_in(place: Path, output: Path) -> list[Path]:
    """Return the files that a verb reads from an input; the folder itself if the output would become a text in it."""
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
