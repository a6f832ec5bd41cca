"""A first look at the data of a run, before torch is imported: refuses missing, empty and unreadable files."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from glassformer.config.run import DataConfig, LabelData, PairData, TextData
from glassformer.data.labels import DroppedLabels, LabelCorpus, read_labelled, read_tagged
from glassformer.data.pairs import DroppedPairs, PairCorpus, read_pair_files
from glassformer.data.records import HUB
from glassformer.data.sources import read_pieces
from glassformer.errors import UserError

N_PIECES = 16  # about a megabyte


def look_at(data: DataConfig, context: int = 0) -> None:
    """Read the beginning of all files of `data`; raise `UserError` for a file from which nothing can be learned.

    A text must have at least one window of `context` + 1 tokens, if all of it is read here. Data on the hub is not
    read.
    """
    if isinstance(data, TextData):
        for path in (data.path, data.valid_path):
            if path is not None and not path.startswith(HUB):
                _look_at_text(path, data.text_field, context)
    elif isinstance(data, PairData):
        PairCorpus(data)
        for each in _sides(data):
            if not (each.path or "").startswith(HUB):
                next(read_pair_files(each, DroppedPairs()), None)
    elif isinstance(data, LabelData):
        LabelCorpus(data)
        read = read_tagged if data.outputs == "tags" else read_labelled
        for path in (data.path, data.valid_path, data.test_path):
            if path is not None and not path.startswith(HUB):
                next(iter(read(data, path, DroppedLabels())), None)


def _sides(data: PairData) -> Iterator[PairData]:
    """Yield the data, and the validation data if it has files of its own."""
    yield data
    if data.valid_path is not None or data.valid_source is not None:
        yield replace(data, path=data.valid_path, source=data.valid_source, target=data.valid_target)


def _look_at_text(path: str, text_field: str, context: int) -> None:
    pieces = list(islice(read_pieces([path], text_field=text_field), N_PIECES))
    if not pieces:
        raise UserError(f"{path} contains only white space; use a file with text")
    # A token has at least one byte, except for the two that mark the ends of a document.
    n_tokens = sum(len(piece.text.encode()) + 2 * piece.ends_document for piece in pieces)
    if len(pieces) < N_PIECES and n_tokens < context + 1:
        raise UserError(
            f"{path} has at most {n_tokens:,} tokens, fewer than one window of {context + 1:,} (data.context "
            f"{context:,} + 1); use more text or a smaller data.context"
        )
