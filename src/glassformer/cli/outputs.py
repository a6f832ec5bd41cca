"""Where a verb writes: never over what it reads."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from glassformer import files
from glassformer.data.builtin import PREFIX
from glassformer.data.records import HUB
from glassformer.data.sources import find_sources, reads
from glassformer.errors import UserError
from glassformer.store.manifest import NAME as MANIFEST

NOT_ON_DISK = (PREFIX, "hub:")


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
