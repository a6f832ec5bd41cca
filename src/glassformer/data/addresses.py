"""Addresses of data, and what is read from each.

A source has a reader of records (`records.Read`). `SOURCES` has it by the suffix of a file or by the prefix of another
address, such as `hf:NAME`. To add a source, write a reader and add it here: texts, pairs, labels, the recognition of
own data and the checks before a run then know it.

A file of another suffix has only texts. A folder means its `.txt` and `.jsonl` files, or else its `.parquet` files,
subfolders included, sorted by path; other files and hidden files are skipped. A pattern such as `src/**/*.py` means the
files that match it, in the same order.
"""

import codecs
import os
import shlex
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from glassformer import files
from glassformer.data import builtin, formats, hub, in_memory
from glassformer.data.records import Kind, Read, Record, Request
from glassformer.errors import UserError

FOLDER_SUFFIXES = ((".txt", ".jsonl"), (".parquet",))
"""Suffixes of the files that a folder means: the first group of which it has files."""
_HEAD_BYTES = 1 << 18
_WILDCARD = frozenset("*?[")


@dataclass(frozen=True)
class Source:
    """Records at one kind of address."""

    read: Read
    kinds: tuple[Kind, ...] = ("text", "pairs", "labels", "tags", "conversations")
    """Kinds that the records can be read as."""
    is_plain: bool = False
    """True for files whose size is about that of their texts."""


SOURCES: dict[str, Source] = {
    ".tsv": Source(formats.read_table, ("pairs", "labels", "conversations"), is_plain=True),
    ".csv": Source(formats.read_table, ("pairs", "labels", "conversations"), is_plain=True),
    ".jsonl": Source(formats.read_jsonl, is_plain=True),
    ".parquet": Source(formats.read_parquet),
    ".conll": Source(formats.read_conll, ("tags",), is_plain=True),
    builtin.PREFIX: Source(builtin.read),
    hub.PREFIX: Source(hub.read),
    in_memory.PREFIX: Source(in_memory.read),
}
_HINTS: dict[Kind, str] = {
    "pairs": "; for two files, set --data.source and --data.target",
    "tags": " (lists of words and of tags, or lines of word TAB tag)",
}


def records(address: str, request: Request) -> Iterator[Record]:
    """Return the records at an address; raise `UserError` if its source has no records of the kind."""
    source = source_of(address)
    if source is not None and request.kind in source.kinds:
        return source.read(address, request)
    hint = _HINTS.get(request.kind, "")
    if source is not None and "tags" in source.kinds:
        hint = "; for words with tags, set --data.outputs tags"
    *first, last = suffixes_of(request.kind)
    raise UserError(f"{address}: expected a {', '.join(first)} or {last} file{hint}")


def source_of(address: str) -> Source | None:
    """Return the source of records at an address; None for a file of text, a folder and a pattern."""
    if is_pattern(address):
        return None
    return SOURCES.get(_prefix(address) or Path(address).suffix.lower())


def suffixes_of(kind: Kind) -> list[str]:
    """Return the suffixes of the files that have records of a kind."""
    return [name for name, source in SOURCES.items() if name.startswith(".") and kind in source.kinds]


def is_file(address: str) -> bool:
    """Return True for the address of a file, a folder or a pattern."""
    return not _prefix(address)


def _prefix(address: str) -> str:
    prefix = "".join(address.partition(":")[:2])
    return prefix if prefix.endswith(":") and prefix in SOURCES else ""


def local_path(address: str, argument: str = "path") -> Path | None:
    """Return the file or folder of an address; None for data that is not on this disk.

    After `hf:` comes the name of a repository on the hub, or a local folder.
    """
    if is_file(address):
        return files.as_path(address, argument)
    if not address.startswith(hub.PREFIX):
        return None
    path = files.as_path(address.removeprefix(hub.PREFIX).partition("#")[0], argument)
    return path if files.exists(path) else None


def absolute(address: str) -> str:
    """Return an address that works from any working directory."""
    path = local_path(address, "data")
    if path is None:
        return address
    if is_file(address):
        return str(path.absolute())
    _, mark, split = address.partition("#")
    return f"{hub.PREFIX}{path.absolute()}{mark}{split}"


# Files of folders and patterns


def is_pattern(path: str | Path) -> bool:
    """Return True for a pattern such as `src/**/*.py`; a file whose name has these characters is a file."""
    return not _WILDCARD.isdisjoint(str(path)) and not files.exists(Path(path))


def split_pattern(pattern: str | Path) -> tuple[Path, tuple[str, ...]]:
    """Split a pattern into the folder to search and the parts that file paths in it must match.

    >>> split_pattern("src/**/*.py")
    (PosixPath('src'), ('**', '*.py'))
    """
    parts = Path(pattern).parts
    n = next((n for n, part in enumerate(parts) if not _WILDCARD.isdisjoint(part)), len(parts))
    return Path(*parts[:n]), parts[n:]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if the parts of a path match those of a pattern; `**` matches any number of folders.

    >>> _matches(("a", "b", "c.py"), ("**", "*.py")), _matches(("c.py",), ("**", "*.py")), _matches(("a", "c"), ("*",))
    (True, True, False)
    """
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def find_files(path: Path, others: list[Path]) -> list[Path]:
    """Return the file, or the files of a folder or pattern; raise `UserError` for a missing or empty file.

    The other files of a folder are added to `others`.
    """
    if is_pattern(path):
        return _files_of_pattern(path)
    with files.reading(path):
        status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return _files_of_folder(path, others)
    if status.st_size == 0:
        raise UserError(f"{path} is empty; use a file with text")
    return [path]


def _files_of_pattern(path: Path) -> list[Path]:
    folder, pattern = split_pattern(path)
    with files.reading(folder):
        folder.stat()
    matches = [file for file in _files_in(folder) if _matches(file.relative_to(folder).parts, pattern)]
    if not matches:
        raise UserError(f"no file matches {path}: `**` means any number of folders, as in src/**/*.py")
    _require_inside(matches, folder)
    return matches


def _files_of_folder(folder: Path, others: list[Path]) -> list[Path]:
    everything = _files_in(folder)
    for suffixes in FOLDER_SUFFIXES:
        if texts := [file for file in everything if file.suffix.lower() in suffixes]:
            others += [file for file in everything if file.suffix.lower() not in suffixes]
            _require_inside(texts, folder)
            return texts
    raise _no_texts(folder, everything)


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, sorted by path, without hidden ones."""
    paths: list[Path] = []

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename}: {files.reason(error)}") from error

    for where, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        paths += [Path(where, name) for name in names if not name.startswith(".")]
    return sorted(paths, key=lambda path: path.relative_to(folder).parts)


def _require_inside(paths: Sequence[Path], folder: Path) -> None:
    """Refuse links out of an untrusted folder, and files such as pipes, which could block for ever."""
    for path in paths:
        if path.is_symlink() and folder.resolve() not in path.resolve().parents:
            raise UserError(f"{path} is a link to a file outside {folder}; add its target to the paths, or copy it")
        if not path.is_file():
            raise UserError(f"{path} is not a regular file; remove it from {folder}")


def _no_texts(folder: Path, others: Sequence[Path]) -> UserError:
    """Return the error for a folder without texts; it names the most frequent kind of the other files of text."""
    for suffix, n in Counter(path.suffix for path in others).most_common():
        example = next(path for path in others if path.suffix == suffix)
        if suffix and _is_text(example):
            pattern = shlex.quote(str(folder / "**" / f"*{suffix}"))
            more = f"has {n:,} {suffix} file{'s' * (n > 1)} and no .txt or .jsonl file: glassformer train {pattern}"
            return UserError(f"{folder} {more}")
    return UserError(f"{folder} has no .txt or .jsonl file; name the files, or use another folder")


def _is_text(path: Path) -> bool:
    """Return True if a file begins with UTF-8."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except (OSError, UnicodeDecodeError):
        return False
    return b"\0" not in head


def reads(place: Path, path: Path) -> bool:
    """Return True if `path`, which need not exist, is a text file that reading a folder or a pattern includes."""
    folder: Path = place
    pattern: tuple[str, ...] = ("**",)
    if is_pattern(place):
        folder, pattern = split_pattern(place)
    file, root = path.resolve(), folder.resolve()
    if root not in file.parents or (folder == place and file.suffix.lower() not in FOLDER_SUFFIXES[0]):
        return False
    parts = file.relative_to(root).parts
    return _matches(parts, pattern) and not any(part.startswith(".") for part in parts)
