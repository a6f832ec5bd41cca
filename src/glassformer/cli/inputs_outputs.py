"""The models and texts that a verb reads, and where it writes: never over what it reads."""

import os
from collections.abc import Iterable, Iterator, Sequence
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


@dataclass(frozen=True)
class Stored:
    """Which weights, and where."""

    checkpoint: int | None = setting(None, "use the checkpoint of this step")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")

    def model(self, directory: str | Path) -> "Model":
        """The model of a directory, loaded as the options say."""
        from glassformer import api

        return api.load(directory, step=self.checkpoint, device=self.device)


@dataclass(frozen=True)
class Loading(Stored):
    """Which weights, where, and in which precision."""

    dtype: str | None = setting(
        None, "convert the weights to bf16 or fp16, or keep fp32, the default; evaluate: by default as in training"
    )
    matmul_precision: Literal["highest", "high", "medium"] | None = setting(
        None, "fp32 matrix products: highest = exact; high = TF32 on CUDA; medium = also bf16; implies --dtype fp32"
    )

    def model(self, directory: str | Path) -> "Model":
        """The model of a directory, loaded as the options say."""
        from glassformer import api

        dtype = self.dtype
        if self.matmul_precision is not None:
            if dtype not in (None, "fp32"):
                raise UserError(f"--matmul-precision is for weights in fp32, and --dtype is {dtype}: give one of them")
            dtype = "fp32"
            import torch

            torch.set_float32_matmul_precision(self.matmul_precision)
        return api.load(directory, step=self.checkpoint, device=self.device, dtype=dtype)

    def ensemble(self, directories: Sequence[str | Path]) -> "Model":
        """The one model that is named, or an ensemble of several."""
        from glassformer import api

        return api.ensemble([self.model(directory) for directory in directories])


@dataclass(frozen=True)
class Measured:
    """The data to measure on, by default the validation data of each run."""

    data__path: File | None = setting(None, "a text, pairs in one file, or labelled texts, whole")
    data__source: File | None = setting(None, "the source side of pairs: a text file, one sentence a line")
    data__target: File | None = setting(None, "the target side: line i is the target of line i")

    @property
    def places(self) -> dict[str, Any]:
        """As the methods of a model name them."""
        return {"path": self.data__path, "source": self.data__source, "target": self.data__target}


def directories_and_text(words: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """Model directories, and the text behind them, if there is one: a last word that is no folder.

    >>> directories_and_text([".", ".", "a text"])
    (['.', '.'], 'a text')
    >>> directories_and_text([".", "."])
    (['.', '.'], None)
    """
    if not words:
        raise UserError("name at least one model directory")
    has_text = len(words) > 1 and not os.path.isdir(words[-1])  # Path.is_dir raises where a text is long
    return (words[:-1], words[-1]) if has_text else (words, None)


@dataclass(frozen=True)
class GivenTexts:
    """One text a line, and where they stood."""

    texts: list[str]
    source: str | None
    """A file, or standard input; none where the text stood on the command line."""

    def where(self, place: int) -> str:
        """How a message about a text begins: `notes.txt:3: `."""
        return "" if self.source is None else f"{self.source}:{place + 1}: "

    @contextmanager
    def at(self, place: int) -> Iterator[None]:
        """Names the place of a text in what is said of it."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.where(place)}{error}") from error


def given_texts(text: str | None, input: str | None) -> GivenTexts:
    """The text of the command line, or the lines of a file or of standard input; an empty file gives no texts.

    `UserError` when both are given, and for an empty text or line: each gives a line of output, or a row.
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
        raise UserError("there is no text: give one, or --input FILE, or lines on standard input")
    for place, line in enumerate(found.texts):
        if not line.strip():
            raise UserError(f"{found.where(place)}the line is empty: take it out, or put a text there")
    return found


def require_output(output: Path, inputs: Iterable[str | Path | None]) -> None:
    """`UserError` where a file cannot be written, or is one of the inputs as the command line names them.

    An input is a file, a model directory or run (of which its own files count), or a folder of texts (of which its
    texts count); None and - are none. After `hf:` stands a name of the hub, or a folder on this disk.
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
    """The files that a verb reads of an input; a whole folder where the output would be one more of its texts."""
    if not files.exists(place) or not place.is_dir():
        return [place]
    from glassformer.store.model_directory import own_paths

    if (place / MANIFEST).exists():
        return own_paths(place)
    if reads(place, output):
        return [place]
    with suppress(UserError):  # a folder without texts: the verb says so itself
        return [source.path for source in find_sources([place]) if source.path is not None]
    return []
