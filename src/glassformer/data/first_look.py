"""A first look at the data of a run, before torch is imported: refuses missing, empty and unreadable files."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from glassformer.config.run import (
    ConversationData,
    DataConfig,
    LabelData,
    PairData,
    PreferenceData,
    PromptData,
    TextData,
)
from glassformer.data import hub
from glassformer.data.conversations import ConversationCorpus
from glassformer.data.labels import LabelCorpus
from glassformer.data.pairs import PairCorpus
from glassformer.data.preferences import PreferenceCorpus
from glassformer.data.prompts import PromptCorpus
from glassformer.data.record_corpus import RecordCorpus
from glassformer.data.split import cut_of, require_fraction
from glassformer.data.texts import read_pieces, too_few_tokens, without_text

N_PIECES = 16  # about a megabyte
CORPORA: dict[type, Callable[[Any], RecordCorpus[Any, Any]]] = {
    PairData: PairCorpus,
    LabelData: LabelCorpus,
    ConversationData: ConversationCorpus,
    PreferenceData: PreferenceCorpus,
    PromptData: PromptCorpus,
}
"""The corpus of each kind of records."""


def look_at(data: DataConfig, context: int = 0) -> None:
    """Read the beginning of all files of `data`; raise `UserError` for a file from which nothing can be learned.

    A text must have at least one window of `context` + 1 tokens, if all of it is read here. Data on the hub is not
    read.
    """
    if isinstance(data, TextData) and data.valid_path is None:
        require_fraction(data.valid_fraction)
    for part in _parts(data):
        if (part.path or "").startswith(hub.PREFIX):
            continue
        if isinstance(part, TextData):
            _look_at_text(part, context)
        else:
            next(_items(part), None)


def require_readable(data: DataConfig) -> None:
    """Read all of `data.path`; raise `UserError` for a record that cannot be read."""
    deque(_items(data), maxlen=0)


def _items(data: DataConfig) -> Iterator[Any]:
    """Iterate over the records of `data.path`: pieces, pairs, labelled texts, conversations, preferences or prompts."""
    if isinstance(data, TextData):
        return read_pieces([str(data.path)], data)
    return CORPORA[type(data)](data).records(data, "train")


def _parts(data: DataConfig) -> Iterator[DataConfig]:
    """Yield the data and its validation data, each as data of its own; check the settings of the paths."""
    if isinstance(data, PairData):
        yield from filter(None, (data, PairCorpus(data).valid_data))
        return
    if not isinstance(data, TextData):
        CORPORA[type(data)](data)
    for name in ("path", "valid_path"):
        if (path := getattr(data, name, None)) is not None:
            yield replace(data, path=path)


def _look_at_text(data: TextData, context: int) -> None:
    path = str(data.path)
    pieces = list(islice(_items(data), N_PIECES))
    if not pieces:
        raise without_text(path)
    # A token has at least one byte, except for the two that mark the ends of a document.
    n_tokens = sum(len(piece.text.encode()) + 2 * piece.ends_document for piece in pieces)
    if len(pieces) < N_PIECES and n_tokens < context + 1:
        raise too_few_tokens(path, f"at most {n_tokens:,}", context)
    n_documents = sum(piece.ends_document for piece in pieces)
    if len(pieces) < N_PIECES and n_documents == 1 and data.valid_path is None:
        cut_of(path, sum(len(piece.text) for piece in pieces), data.valid_fraction)
