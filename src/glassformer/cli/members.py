"""The models that a command line names: one, or several that vote."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from glassformer import api
from glassformer.errors import UserError
from glassformer.model import Model


@dataclass(frozen=True)
class Loading:
    """Options of every verb that uses a model: which weights, where, and in which precision."""

    checkpoint: int | None = None
    """Use the checkpoint of this step."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    dtype: str | None = None
    """Convert the weights to bf16 or fp16, or keep them in fp32; by default fp32, and evaluate as the run was trained.
    """
    matmul_precision: Literal["highest", "high", "medium"] | None = None
    """Of fp32 matrix products: highest is exact, high is TF32 on CUDA, medium also bf16; implies --dtype fp32."""

    def model(self, directory: str | Path) -> Model:
        """The model of a directory, loaded as the options say."""
        dtype = self.dtype
        if self.matmul_precision is not None:
            if dtype not in (None, "fp32"):
                raise UserError(f"--matmul-precision is for weights in fp32, and --dtype is {dtype}: give one of them")
            dtype = "fp32"
            torch.set_float32_matmul_precision(self.matmul_precision)
        return api.load(directory, step=self.checkpoint, device=self.device, dtype=dtype)

    def ensemble(self, directories: Sequence[str | Path]) -> Model:
        """The one model that is named, or an ensemble of several."""
        return api.ensemble([self.model(directory) for directory in directories])


Loaded = Annotated[Loading, tyro.conf.arg(name="", prefix_name=False)]
"""`Loading` as a parameter of a verb: its options have no prefix."""
BY_DEFAULT = Loading()


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
