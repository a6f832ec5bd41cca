"""The models that a command line names: one, or several that vote."""

import os
from collections.abc import Sequence
from pathlib import Path

from glassformer import api
from glassformer.errors import UserError
from glassformer.model import Model


def load_ensemble(directories: Sequence[str | Path], checkpoint: int | None, device: str) -> Model:
    """The one model that is named, or an ensemble of several."""
    return api.ensemble([api.load(directory, step=checkpoint, device=device) for directory in directories])


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
