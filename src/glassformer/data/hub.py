"""The Hugging Face hub: `hf:NAME` is a repository there, or a local folder.

Datasets are read with the library `datasets` (extra: data).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from glassformer.common.errors import UserError, first_line, needs
from glassformer.data.records import Record, Request

PREFIX = "hf:"
VALIDATION = "validation"
"""Name of the split of a dataset that is used as validation data."""


def splits(address: str) -> list[str]:
    """Return the names of the splits of a dataset."""
    with _datasets(address) as library:
        return list(library.get_dataset_split_names(*_parsed(address)[0]))


def _parsed(address: str) -> tuple[list[str], str | None]:
    """Parse `hf:NAME:CONFIG#SPLIT` → ([NAME, CONFIG], SPLIT); configuration and split are optional."""
    name, _, split = address.removeprefix(PREFIX).partition("#")
    return [part for part in name.split(":", 1) if part], split or None


@contextmanager
def _datasets(address: str) -> Iterator[Any]:
    """Yield the library `datasets`; convert its errors in the block, which reads `address`, into a `UserError`."""
    with needs("a Hugging Face dataset", "data"):
        import datasets
    try:
        yield datasets
    except Exception as error:  # any error: no network, unknown name, a script that the library does not run
        reason = first_line(error)
        raise UserError(f"the dataset {address} cannot be read: {reason}; check the name and the network") from error


def read(address: str, request: Request) -> Iterator[Record]:
    """Yield the rows of a dataset: of the split that its address names, else of `request.split`."""
    name, named = _parsed(address)
    split = named or request.split
    with _datasets(address) as library:
        rows: Iterable[Mapping[str, Any]] = library.load_dataset(*name, split=split)
    features = getattr(rows, "features", None)
    for number, row in enumerate(rows, 1):
        yield Record(f"row {number} of {address} ({split})", row, request.settings, features)
