"""Inputs and outputs of verbs: models, texts, and output files, which never replace an input."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer import files
from glassformer.cli.arguments import File, read_stdin
from glassformer.config.schema import setting
from glassformer.data.builtin import PREFIX
from glassformer.data.records import HUB, lines
from glassformer.data.sources import find_sources, reads
from glassformer.errors import UserError
from glassformer.store.manifest import NAME as MANIFEST

if TYPE_CHECKING:
    from glassformer.model import Model

NOT_ON_DISK = (PREFIX, "hub:")


def require_effect(model: "Model", search: Mapping[str, Any]) -> None:
    """Raise `UserError` for an option of beam search that has no effect with a beam of 1."""
    from glassformer.tasks.encoder_decoder import beam

    given = [name for name in ("length_penalty", "length_penalty_type", "early_stopping") if name in search]
    if given and beam(model, search).beam == 1:
        raise UserError(
            f"--{given[0].replace('_', '-')} has no effect with a beam of 1, a greedy search: remove it, or set --beam "
            "above 1"
        )


@dataclass(frozen=True)
class Stored:
    """Checkpoint and device."""

    checkpoint: int | None = setting(None, "use the checkpoint of this step")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")

    def model(self, directory: str | Path) -> "Model":
        """Load the model of a directory with these options."""
        from glassformer import api

        return api.load(directory, step=self.checkpoint, device=self.device)


@dataclass(frozen=True)
class Loading(Stored):
    """Checkpoint, device and precision."""

    dtype: str | None = setting(
        None, "type of the weights: fp32 (default), bf16, fp16 or int8; evaluate uses the training precision by default"
    )
    matmul_precision: Literal["highest", "high", "medium"] | None = setting(
        None, "fp32 matrix products: highest = fp32; high = TF32 on CUDA; medium = also bf16; implies --dtype fp32"
    )

    def model(self, directory: str | Path) -> "Model":
        """Load the model of a directory with these options."""
        from glassformer import api

        dtype = self.dtype
        if self.matmul_precision is not None:
            if dtype not in (None, "fp32"):
                raise UserError(f"--matmul-precision needs fp32 weights, got --dtype {dtype}; give only one option")
            dtype = "fp32"
            import torch

            torch.set_float32_matmul_precision(self.matmul_precision)
        return api.load(directory, step=self.checkpoint, device=self.device, dtype=dtype)

    def ensemble(self, directories: Sequence[str | Path]) -> "Model":
        """Load one model, or an ensemble of several models."""
        from glassformer import api

        return api.ensemble([self.model(directory) for directory in directories])


@dataclass(frozen=True)
class TextOrPair:
    """Text for a model with one stack, or source and target for an encoder-decoder."""

    text: str | None = setting(None, "The input of a model with one stack.")
    source: str | None = setting(None, "The source text of an encoder-decoder.")
    target: str | None = setting(None, "The target text of an encoder-decoder; by default the model's own output.")

    @property
    def named(self) -> dict[str, Any]:
        """The keyword arguments for `capture`."""
        return {"text": self.text, "source": self.source, "target": self.target}


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
    return (words[:-1], words[-1]) if has_text else (words, None)


@dataclass(frozen=True)
class GivenTexts:
    """Input texts and their source."""

    texts: list[str]
    source: str | None
    """A file name or "standard input"; None for a text on the command line."""

    def where(self, place: int) -> str:
        """Return the beginning of a message about a text, such as `notes.txt:3: `."""
        return "" if self.source is None else f"{self.source}:{place + 1}: "

    @contextmanager
    def at(self, place: int) -> Iterator[None]:
        """Put the place of a text before the message of any `UserError` raised in the block."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.where(place)}{error}") from error


def given_texts(text: str | None, input: str | None) -> GivenTexts:
    """Return the text of the command line, or the lines of a file or of standard input; an empty file has no lines.

    Raises `UserError` if both are given, and for an empty text or line, because each line gives a result.
    """
    if text is not None and input is not None:
        raise UserError("give a text or --input FILE, not both")
    if text is not None:
        found = GivenTexts([text], None)
    elif input in (None, "-"):
        found = GivenTexts(lines(read_stdin()), "standard input")
    else:
        found = GivenTexts(lines(files.read_text(Path(str(input)))), str(input))
    if found.texts and not any(line.strip() for line in found.texts):
        raise UserError("no text given: give a text, --input FILE, or lines on standard input")
    for place, line in enumerate(found.texts):
        if not line.strip():
            raise UserError(f"{found.where(place)}the line is empty; remove it or write a text")
    return found


def require_output(output: Path, inputs: Iterable[str | Path | None]) -> None:
    """Raise `UserError` if a file cannot be written, or is one of the inputs on the command line.

    An input is a file, a model directory or run folder (checked by its own files), or a folder of texts (checked by its
    texts). None and - are ignored. After `hf:` comes a dataset name of the hub, or a local folder.
    """
    files.require_file_place(output)
    for given in inputs:
        if given is None or str(given) == "-" or str(given).startswith(NOT_ON_DISK):
            continue
        if str(given).startswith(HUB):
            place = Path(str(given).removeprefix(HUB).partition("#")[0])
            files.require_apart(output, [place] if files.exists(place) else [])
        else:
            files.require_apart(output, _read_in(Path(given), output))


def _read_in(place: Path, output: Path) -> list[Path]:
    """Return the files that a verb reads from an input; the folder itself if the output would become a text in it."""
    if not files.exists(place) or not place.is_dir():
        return [place]
    from glassformer.store.model_directory import own_paths

    if (place / MANIFEST).exists():
        return own_paths(place)
    if reads(place, output):
        return [place]
    with suppress(UserError):  # a folder without texts: the verb raises this error
        return [source.path for source in find_sources([place]) if source.path is not None]
    return []
