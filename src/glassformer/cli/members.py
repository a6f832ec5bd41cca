"""The models that a command line names: one, or several that vote."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.arguments import File
from glassformer.config.schema import setting
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.model import Model


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
