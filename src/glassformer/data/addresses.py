"""Addresses of data, and what is read from each.

A source reads the records at an address (`records.Read`). The keys of `SOURCES` are suffixes of files, and prefixes of
other addresses such as `hf:NAME`. To add a source, write a reader and add it to `SOURCES`. Texts, pairs, labels, the
recognition of own data and the checks before a run then use it.

A file of another suffix is one text. Kinds of data other than text read records from it, if its content is records
(`formats.layout_of`). A folder means its `.txt`, `.md` and `.jsonl` files, or its `.parquet` files if it has no such
file. Files of subfolders are included, and all files are sorted by path. Other files and hidden files are skipped. A
pattern such as `src/**/*.py` means the files that match it, in the same order. `{a,b}` in a pattern means one of
several parts: `notes/*.{txt,md}`, or `{notes,diary}` for two folders.
"""

import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.data import builtin, formats, in_memory
from glassformer.data.records import Kind, Read, Record, Request
from glassformer.data.text_files import fault, suffix_of

FOLDER_SUFFIXES = ((".txt", ".md", ".jsonl"), (".parquet",))
"""Suffixes of the files that are read from a folder: those of the first group of which the folder has a file."""
_WILDCARD = frozenset("*?[")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
MAX_PATTERNS = 4096
"""Maximum number of patterns to which the braces of one pattern may be expanded."""


@dataclass(frozen=True)
class Source:
    """Records at one kind of address."""

    read: Read
    kinds: tuple[Kind, ...] = ("text", "pairs", "labels", "tags", "conversations")
    """Kinds that the records can be read as."""
    is_plain: bool = False
    """True for files that are about as large as the texts in them; False for compressed files, such as Parquet."""


_TABLE = Source(formats.read, ("pairs", "labels", "conversations"), is_plain=True)
SOURCES: dict[str, Source] = {
    ".tsv": _TABLE,
    ".csv": _TABLE,
    ".jsonl": Source(formats.read, is_plain=True),
    ".ndjson": Source(formats.read, is_plain=True),
    ".parquet": Source(formats.read_parquet),
    ".conll": Source(formats.read_conll, ("tags",), is_plain=True),
    builtin.PREFIX: Source(builtin.read),
    formats.HUB: Source(formats.read_dataset),
    in_memory.PREFIX: Source(in_memory.read),
}
BY_CONTENT = _TABLE
"""The source of a file whose suffix is not in `SOURCES`. Such a file may also be a text."""
_HINTS: dict[Kind, str] = {
    "pairs": "; for two files, set --data.source and --data.target",
    "tags": " (lists of words and of tags, or lines of word TAB tag)",
}


def records(address: str, request: Request) -> Iterator[Record]:
    """Return the records at an address; raise `UserError` if its source has no records of the kind."""
    source = source_of(address)
    if source is None and is_single_file(address):
        source = BY_CONTENT
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
    return SOURCES.get(_prefix(address) or suffix_of(address))


def reads_content(address: str) -> bool:
    """Return True for a single file that `formats.read` reads: its content decides the format of its records."""
    return is_single_file(address) and (source_of(address) or BY_CONTENT).read is formats.read


def is_single_file(address: str) -> bool:
    """Return True for the path of one file, which may be missing; False for a folder, a pattern and another address."""
    return is_file(address) and not is_pattern(address) and not os.path.isdir(address)


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
    if not address.startswith(formats.HUB):
        return None
    path = files.as_path(address.removeprefix(formats.HUB).partition("#")[0], argument)
    return path if files.exists(path) else None


def absolute(address: str) -> str:
    """Return an address that works from any working directory."""
    path = local_path(address, "data")
    if path is None:
        return address
    if is_file(address):
        return str(path.absolute())
    _, mark, split = address.partition("#")
    return f"{formats.HUB}{path.absolute()}{mark}{split}"


# Files of folders and patterns


def is_pattern(path: str | Path) -> bool:
    """Return True for a pattern such as `src/**/*.py`; False for an existing file whose name has such characters."""
    text = str(path)
    has_signs = not _WILDCARD.isdisjoint(text) or _BRACES.search(text) is not None
    return has_signs and not files.exists(Path(path))


def expanded(pattern: str) -> list[str]:
    """Return the patterns without braces that a pattern with braces means.

    >>> expanded("notes/*.{txt,md}"), expanded("{a,b}/{c,d}")
    (['notes/*.txt', 'notes/*.md'], ['a/c', 'a/d', 'b/c', 'b/d'])
    """
    found = [pattern]
    while match := _BRACES.search(found[0]):
        inside = match.group()
        found = [one.replace(inside, part, 1) for one in found for part in match.group(1).split(",")]
        if len(found) > MAX_PATTERNS:
            raise UserError(f"the braces of {pattern:.60} mean more than {MAX_PATTERNS:,} patterns: use fewer")
    return found


def joined(sources: Sequence[str]) -> str:
    """Return one pattern for several files, folders and patterns.

    >>> joined(["notes/*.txt", "notes/b/*.md"]), joined(["a", "/b"])[:1]
    ('notes/{*.txt,b/*.md}', '/')
    """
    sources = [part for source in sources for part in (expanded(source) if is_pattern(source) else [source])]
    if unusable := next((source for source in sources if set("{},") & set(source)), None):
        raise UserError(f"{unusable} has a comma or a brace in its name: give one pattern or folder for all texts")
    if any(os.path.isabs(source) for source in sources):
        sources = [os.path.abspath(source) for source in sources]
    common = os.path.commonpath([os.path.dirname(source) for source in sources])
    rest = ",".join(os.path.relpath(source, common or ".") for source in sources)
    return os.path.join(common, f"{{{rest}}}")


def split_pattern(pattern: str | Path) -> tuple[Path, tuple[str, ...]]:
    """Split a pattern into the folder to search, and the parts that paths of files in this folder must match.

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


def find_files(path: Path, others: list[Path]) -> dict[Path, str]:
    """Return the files of a path, folder or pattern, each with the reason why it cannot be opened, or "".

    Files of a folder that are not read are added to `others`. Raises `UserError` for a folder or pattern without files.
    """
    parts = map(Path, expanded(str(path))) if is_pattern(path) else [path]
    return {path: fault for part in parts for path, fault in _files_at(part, others)}


def _files_at(path: Path, others: list[Path]) -> list[tuple[Path, str]]:
    if is_pattern(path):
        folder, pattern = split_pattern(path)
        with files.reading(folder):
            folder.stat()
        matches = [file for file in _files_in(folder) if _matches(file.relative_to(folder).parts, pattern)]
        if not matches:
            raise UserError(f"no file matches {path}: `**` means any number of folders, as in src/**/*.py")
        return [(file, _fault_of_place(file, folder)) for file in matches]
    if os.path.islink(path) and not files.exists(path):
        raise UserError(f"{path} {BROKEN_LINK}")
    with files.reading(path):
        status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return _files_of_folder(path, others)
    return [(path, "")]


def _files_of_folder(folder: Path, others: list[Path]) -> list[tuple[Path, str]]:
    everything = _files_in(folder)
    for suffixes in FOLDER_SUFFIXES:
        if texts := [file for file in everything if suffix_of(file) in suffixes]:
            others += [file for file in everything if suffix_of(file) not in suffixes]
            return [(file, _fault_of_place(file, folder)) for file in texts]
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


BROKEN_LINK = "is a link to a file that does not exist; remove it, or restore the file"


def _fault_of_place(path: Path, folder: Path) -> str:
    """Return why a file must not be opened, or "": a broken link, a link out of the folder, or for example a pipe."""
    if path.is_symlink() and not files.exists(path):
        return f"{path} {BROKEN_LINK}"
    if path.is_symlink() and folder.resolve() not in path.resolve().parents:
        return f"{path} is a link to a file outside {folder}; add its target to the paths, or copy it"
    if not path.is_file():
        return f"{path} is not a regular file; remove it from {folder}"
    return ""


def _no_texts(folder: Path, others: Sequence[Path]) -> UserError:
    """Return the error for a folder without texts; it suggests the most frequent suffix of the other text files."""
    for suffix, n in Counter(path.suffix for path in others).most_common():
        example = next(path for path in others if path.suffix == suffix)
        if suffix and not fault(example, is_head=True):
            pattern = shlex.quote(str(folder / "**" / f"*{suffix}"))
            more = (
                f"has {n:,} {suffix} file{'s' * (n > 1)} and no .txt, .md or .jsonl file: glassformer train {pattern}"
            )
            return UserError(f"{folder} {more}")
    return UserError(f"{folder} has no .txt, .md or .jsonl file; name the files, or use another folder")


def reads(place: Path, path: Path) -> bool:
    """Return True if reading the folder or pattern `place` includes the text file `path`, which need not exist."""
    if is_pattern(place) and len(parts := expanded(str(place))) > 1:
        return any(Path(part).resolve() == path.resolve() or reads(Path(part), path) for part in parts)
    folder: Path = place
    pattern: tuple[str, ...] = ("**",)
    if is_pattern(place):
        folder, pattern = split_pattern(place)
    file, root = path.resolve(), folder.resolve()
    if root not in file.parents or (folder == place and suffix_of(file) not in FOLDER_SUFFIXES[0]):
        return False
    names = file.relative_to(root).parts
    return _matches(names, pattern) and not any(name.startswith(".") for name in names)
