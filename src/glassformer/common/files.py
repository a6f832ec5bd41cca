"""File I/O: atomic writes, bounded reads, hashes.

These functions write a file or folder completely or not at all: the bytes go to a temporary name in the same
folder, are flushed to the disk (fsync), and are then renamed, which is atomic on one file system.

Input files are not trusted. Their size is limited before they are read, and ambiguous JSON is refused. A pickle,
which could run code, is recognised by its first bytes and refused.
"""

import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from glassformer.common.errors import UserError

K = TypeVar("K", bound=Any)
MAX_TEXT_BYTES = 256 * 1024 * 1024  # for files that are read whole: pairs, labels, prompts
MAX_JSON_BYTES = 16 * 1024 * 1024  # about 1000 × a real configuration, manifest or weights header
MAX_JSON_DEPTH = 64
MAX_DIGITS = 40  # of an integer: more than 128 bits
_DAY = 86400.0  # seconds
_ANOTHER_PLACE = "choose a writable place"
_REPLACED = "-replaced"
"""End of the name of a folder that `new_folder` is replacing."""


MAX_NAME, MAX_PATH = 255, 4095
"""`MAX_NAME`: longest name of a file. `MAX_PATH`: longest path. Both in bytes, on Linux and macOS."""


def reason(error: OSError) -> str:
    """Return the operating system's message for an error without its number, such as `Permission denied`."""
    return error.strerror or str(error)


def exists(path: Path) -> bool:
    """Return True if a file or folder exists; False for an invalid name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file atomically; raise `UserError` if the place is not writable."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with writing(path, _ANOTHER_PLACE):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            fsync_folder(path.parent)
    finally:
        with suppress(OSError):  # on a failing disk, report only the first error
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON with keys in their given order and without NaN, so that equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most `max_bytes`, counted while reading; raise `UserError` for a pickle."""
    try:
        with reading(path):
            if path.is_dir():
                raise UserError(f"{path} is a folder: give a file")
            with open(path, "rb") as file:
                data = file.read(max_bytes + 1)
    except ValueError as error:  # the name contains a NUL
        raise UserError(f"{str(path)!r} is not a valid file name") from error
    if len(data) > max_bytes:
        size = max(len(data), path.stat().st_size)
        raise UserError(f"{path} has {size:,} bytes, more than the limit of {max_bytes:,}")
    _refuse_objects(path, data)
    return data


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a UTF-8 file, with or without a byte order mark; raise `UserError` for an invalid byte or a NUL."""
    data = read_bytes(path, max_bytes)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise utf8_error(path, error, len(data) - len(error.object)) from error
    if (place := data.find(b"\0")) >= 0:
        raise nul_error(path, place, data.count(b"\n", 0, place) + 1)
    return text


def utf8_error(path: Path, error: UnicodeDecodeError, offset: int, line: int = 1) -> UserError:
    """Return the error for invalid UTF-8 in a part of a file that begins at `offset` and `line`."""
    line += error.object.count(b"\n", 0, error.start)
    return UserError(
        f"{path} is not UTF-8: byte {error.object[error.start]:#04x} at offset {offset + error.start} (line {line}); "
        "convert it to UTF-8 first"
    )


def nul_error(path: Path, offset: int, line: int) -> UserError:
    """Return the error for a NUL, which text never contains; UTF-16 has one in most characters."""
    return UserError(
        f"{path} is not plain text: NUL at offset {offset} (line {line}), as in UTF-16; convert it to UTF-8 first"
    )


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file; see `parse_json`."""
    text = read_text(path, max_bytes)
    if not text.strip():
        raise UserError(f"{path} is empty, expected JSON: download it again")
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


def parse_json(text: str, decoder: json.JSONDecoder | None = None) -> Any:
    """Parse unambiguous JSON; raise `ValueError` with the reason otherwise.

    Also refused: duplicate keys, NaN and Inf, numbers beyond a float or of more than `MAX_DIGITS` digits, and lists
    and objects nested deeper than `MAX_JSON_DEPTH`.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' occurs twice in one object
    """
    try:
        value = (decoder or _DECODER).decode(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels") from None
    require_shallow(value)
    return value


def parse_json_line(line: str, where: str) -> dict[str, Any]:
    """Parse the object on a line of a jsonl file, NaN as null; raise `UserError` with the place for other content."""
    try:
        record = parse_json(line, _ROW_DECODER)
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}; a jsonl file has one object per line") from error
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object; a jsonl file has one object per line")
    return record


def require_shallow(value: Any) -> None:
    """Raise `ValueError` for lists and tables nested deeper than `MAX_JSON_DEPTH`."""
    level: list[Any] = [[value]]
    for _ in range(MAX_JSON_DEPTH + 1):
        inner = (item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer))
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r:.60} occurs twice in one object")
    return table


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not valid JSON")


def _null_if_nan(word: str) -> None:
    if word != "NaN":
        _no_constant(word)


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.20} is too large for a float")
    return number


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"{text:.20}… has {len(text)} digits, more than {MAX_DIGITS}")
    return int(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_float, parse_int=_int)
_ROW_DECODER = json.JSONDecoder(
    object_pairs_hook=_once, parse_constant=_null_if_nan, parse_float=_float, parse_int=_int
)


# Files that contain Python objects


def refuse_objects(path: Path) -> None:
    """Raise `UserError` for a file that begins like a pickle or is a Git LFS pointer; nothing is unpickled."""
    with reading(path), open(path, "rb") as file:
        _refuse_objects(path, file.read(_HEAD))


def holds_objects(head: bytes) -> bool:
    """Detect a pickle of protocol 2 or later, a zip (torch's format) or a numpy array of objects by its first bytes.

    >>> holds_objects(b"\\x80\\x04K\\x01."), holds_objects("\\u20ac".encode("utf-8")), holds_objects(b"text")
    (True, False, False)
    >>> holds_objects((640).to_bytes(8, "little") + b'{"a":')
    False
    """
    # A safetensors file begins with the length of its header in eight bytes, which may equal a pickle's first two.
    is_safetensors = head[4:9] == b"\0\0\0\0{"
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and not is_safetensors
    is_zip = head.startswith(b"PK\x03\x04")  # a zip is neither text nor safetensors; most are files of torch.save
    return is_pickle or is_zip or (head.startswith(b"\x93NUMPY") and b"O'" in head[:_HEAD])


_HEAD = 256
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def _refuse_objects(path: Path, head: bytes) -> None:
    if head.startswith(_LFS_POINTER):
        raise UserError(f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder")
    if holds_objects(head[:_HEAD]):
        raise UserError(
            f"{path} is a pickle or a zip of pickles and is not opened, because a pickle can run any code: where it "
            "was made, load it with torch.load(…, weights_only=True), then write its tensors with "
            "safetensors.torch.save_file, or its texts as UTF-8"
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; the file is read block by block."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_file(path: Path) -> None:
    """Flush a file to the disk; Windows flushes only what is open for writing."""
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk; do nothing on systems that cannot (Windows)."""
    if os.name == "posix":
        fsync_file(path)


def is_no_path(text: str) -> bool:
    """Return True for a text that cannot be the path of a file: it is too long, or has a character that no path has.

    >>> is_no_path("runs/demo"), is_no_path("It was the best of times. " * 20), is_no_path("a\\0b")
    (False, True, True)
    """
    try:
        parts = os.fsencode(text).split(b"/")
    except UnicodeEncodeError:
        return True
    return "\0" in text or len(text) > MAX_PATH or max(map(len, parts)) > MAX_NAME


def as_path(value: object, argument: str) -> Path:
    """Return `value`, a text or a path, as a path with `~` expanded; raise `UserError` that names `argument` otherwise.

    >>> as_path("runs/demo", "folder").name, as_path("~/demo", "folder") == Path.home() / "demo"
    ('demo', True)
    """
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise UserError(f"{argument} must be a path (a str or a Path), not {type(value).__name__}")
    if is_no_path(text := str(value)):
        raise UserError(f"{argument}: expected a path, got a text of {len(text):,} characters: {text!r:.60}")
    path = Path(value)
    if not path.parts or not path.parts[0].startswith("~") or exists(path):
        return path
    try:
        return path.expanduser()
    except RuntimeError as error:  # no user has this name
        raise UserError(f"{argument}: {error}") from error


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache directory; it may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glassformer"


def kept(kind: type[K], facts: dict[str, Any], make: Callable[[], K]) -> K:
    """Return the instance of a dataclass that `make` made for `facts`, now or earlier: it is kept in the user's cache.

    A file that cannot be read is made again. If the folder cannot be written, nothing is kept.
    """
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    path = cache_folder() / "devices" / f"{kind.__name__.lower()}-{key}.json"
    with suppress(UserError, OSError, TypeError, KeyError):
        return kind(**read_json(path)["found"])
    found = make()
    with suppress(UserError, OSError):
        write_json(path, {"facts": facts, "found": asdict(found)})
    return found


def name_of(path: Path) -> str:
    """Return a name for a result of a file or folder: the name of the file without its suffix, or of the folder.

    >>> name_of(Path("books/emma.txt")), name_of(Path("/"))
    ('emma', 'run')
    """
    whole = Path(os.path.abspath(path))
    return (whole.name if whole.is_dir() else whole.stem) or "run"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert any OSError raised in the block into a `UserError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"no such file: {path}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


@contextmanager
def writing(place: Path, hint: str = "files written before are complete") -> Iterator[None]:
    """Convert any OSError raised in the block into a one-line `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {place}: {reason(error)}; {hint}") from error


def require_writable(folder: Path) -> None:
    """Check, before hours of work depend on it, that a folder can be created and written; leave no file in it."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"cannot write {folder}: {place} is a file; choose another folder")
    with writing(folder, _ANOTHER_PLACE):
        os.rmdir(tempfile.mkdtemp(prefix=".glassformer-", dir=place))


def require_file_place(path: Path) -> None:
    """Check, before work depends on it, that a file can be written; leave no file there."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the name of a file to write")
    require_writable(path.parent)


def require_apart(output: Path, inputs: Iterable[Path]) -> None:
    """Raise `UserError` if writing `output`, a file or a folder, would change or delete one of the inputs.

    This happens if `output` is an input, is inside an input folder, or contains an input. Links are followed, and hard
    links to one file count as the same file.
    """
    place, own = _resolved(output), _identity(output)
    above = {_identity(parent) for parent in place.parents} - {None}
    for given in inputs:
        path, identity = _resolved(given), _identity(given)
        if path == place or (own is not None and identity == own):
            relation = "is the same as"
        elif path in place.parents or identity in above:
            relation = "is inside"
        elif place in path.parents or (output.is_dir() and own in map(_identity, path.parents)):
            relation = "contains"
        else:
            continue
        raise UserError(f"{output} {relation} {given}, which is an input: choose another place for the output")


def require_new_folder(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise `UserError` unless a folder can be created at `path`: free, writable and apart from the inputs."""
    if os.path.lexists(path):
        raise UserError(f"{path} already exists: name another folder")
    require_apart(path, inputs)
    require_writable(path)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # circular links or a NUL: no file can exist there
        return path.absolute()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file or folder, which all its names share; None if it does not exist."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `final`; rename it to `final` on success, and delete it on an error.

    Every file in it is flushed to the disk before the rename. An existing `final` is replaced: it is renamed first and
    deleted last, so a process that is killed leaves the old folder or the new one (`restore_replaced`).
    """
    temporary = final.with_name(f".{final.name}.tmp-{os.getpid()}-{_host()}")
    try:
        with writing(final, _ANOTHER_PLACE):
            restore_replaced(final.parent, final.name)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            for path in sorted(temporary.rglob("*")):
                if path.is_file():
                    fsync_file(path)
                else:
                    fsync_folder(path)
            fsync_folder(temporary)
            _put_in_place(temporary, final)
    finally:
        restore_replaced(final.parent, final.name)
        shutil.rmtree(temporary, ignore_errors=True)


def restore_replaced(parent: Path, name: str = "") -> None:
    """Restore the folders in `parent` that `new_folder` was replacing when its process was killed.

    `name` restricts this to one folder. A folder that exists is never changed.
    """
    with suppress(OSError, ValueError):  # the parent does not exist, or its name is not valid
        for aside in list(parent.glob(f".{glob.escape(name) or '*'}.tmp-*{_REPLACED}")):
            with suppress(OSError):  # the new folder exists
                os.rename(aside, parent / aside.name[1:].rpartition(".tmp-")[0])


def clean_unfinished(parent: Path, name: str) -> None:
    """Delete temporary folders that `new_folder` left in `parent` because its process was killed.

    `name` is a regular expression for the whole final name of a folder. A folder of a running process is never touched.
    If it cannot be checked whether the process runs (on another host with a shared disk), the folder must be unchanged
    for a day.
    """
    restore_replaced(parent)
    pattern = re.compile(rf"\.(?:{name})\.tmp-(\d{{1,9}})(?:-([0-9a-f]{{8}}))?(?:{_REPLACED})?")
    with suppress(OSError):  # the folder does not exist yet, or another process cleans it too
        for path in list(parent.iterdir()):
            made_by = pattern.fullmatch(path.name)
            if made_by is None or path.is_symlink() or not path.is_dir():
                continue
            is_of_here = made_by[2] in (None, _host())
            alive = is_alive(int(made_by[1])) if is_of_here else None
            if alive is None:  # it is left alone if it was changed in the last day
                alive = max(file.stat().st_mtime for file in (path, *path.rglob("*"))) >= time.time() - _DAY
            if not alive:
                shutil.rmtree(path, ignore_errors=True)


def _host() -> str:
    """Return eight hexadecimal digits that identify this host or container, since process ids repeat across hosts."""
    place = socket.gethostname()
    with suppress(OSError):
        place += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def is_alive(process: int) -> bool | None:
    """Return True if a process of this host is running; None if the system cannot check it."""
    if os.name != "posix":
        return None  # on Windows, signal 0 is Ctrl-C
    try:
        with suppress(PermissionError):  # raised if another user's process is running
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _put_in_place(temporary: Path, final: Path) -> None:
    """Rename `temporary` to `final` and replace an existing folder; another process may do the same."""
    aside = temporary.with_name(temporary.name + _REPLACED)
    for attempt in range(10):
        shutil.rmtree(aside, ignore_errors=True)
        try:
            if final.is_dir() and not final.is_symlink():
                with suppress(FileNotFoundError):  # another process has renamed it
                    os.rename(final, aside)
            os.rename(temporary, final)
            break
        except OSError as error:
            if attempt == 9 or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    fsync_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)
