"""How the disk is touched: atomic writes, bounded reads, hashes.

A file or folder that these functions write exists whole, or not at all: the bytes go to a temporary name in the
same folder, are flushed to the disk (fsync), and are then renamed, which is atomic on one file system.

What is read may come from anybody: its size is bounded before it is read, JSON says one thing only, and a pickle,
which could run code, is recognised by its first bytes and refused.
"""

import errno
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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from glassformer.errors import UserError

MAX_TEXT_BYTES = 256 * 1024 * 1024  # what is read whole: pairs, labels, prompts
MAX_JSON_BYTES = 16 * 1024 * 1024  # a thousand times a real configuration, manifest or header of weights
MAX_JSON_DEPTH = 64
MAX_DIGITS = 40  # of a whole number: more than 128 bits
_BLOCK = 1 << 20
_DAY = 86400.0  # seconds


def reason(error: OSError) -> str:
    """The operating system's words for an error, without its number: `Permission denied`."""
    return error.strerror or str(error)


def exists(path: Path) -> bool:
    """Whether a file or folder stands there; a name that cannot be one does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a whole file atomically; `UserError` when the place cannot be written."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_folder(path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; choose a place that can be written") from error
    finally:
        with suppress(OSError):  # of a disk that stays bad: the first error tells
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes JSON with sorted keys off and NaN refused, so that the bytes are the same for the same value."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Reads a whole file that may not be larger than `max_bytes`, whatever it says of its size; a pickle is refused."""
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder, and a file is needed")
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise UserError(f"no such file: {path}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    except ValueError as error:  # a name with a NUL
        raise UserError(f"no file can be called {str(path)!r}") from error
    if len(data) > max_bytes:
        size = max(len(data), path.stat().st_size)
        raise UserError(f"{path} has {size:,} bytes, more than the {max_bytes:,} that are read at once")
    _refuse_objects(path, data)
    return data


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Reads a UTF-8 file, with or without a byte order mark; invalid bytes are named, never replaced, and a NUL too."""
    data = read_bytes(path, max_bytes)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start} (line {line}); "
            "convert it to UTF-8 first"
        ) from error
    if (place := data.find(b"\0")) >= 0:
        raise nul_error(path, place, data.count(b"\n", 0, place) + 1)
    return text


def nul_error(path: Path, offset: int, line: int) -> UserError:
    """What is said of a NUL: UTF-16 has one in most characters, and no text needs any."""
    return UserError(
        f"{path} is no text: it has a NUL at offset {offset} (line {line}), as UTF-16 has; convert it to UTF-8 first"
    )


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """What a JSON file says; see `parse_json`."""
    text = read_text(path, max_bytes)
    if not text.strip():
        raise UserError(f"{path} is empty, and JSON is needed: fetch it again")
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


def parse_json(text: str) -> Any:
    """What a JSON text says, when it can mean one thing only; `ValueError` with the reason otherwise.

    Refused beside what is no JSON: a key that stands twice, NaN and infinities, numbers beyond a float or of more
    than `MAX_DIGITS` digits, and lists and objects nested deeper than `MAX_JSON_DEPTH`.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' stands twice in one object
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels") from None
    require_shallow(value)
    return value


def require_shallow(value: Any) -> None:
    """`ValueError` for lists and tables nested deeper than `MAX_JSON_DEPTH`."""
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
        raise ValueError(f"the key {twice!r:.60} stands twice in one object")
    return table


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.20} is beyond any float")
    return number


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"{text:.20}… is a number of {len(text)} digits")
    return int(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_float, parse_int=_int)


# Files that hold Python objects


def refuse_objects(path: Path) -> None:
    """`UserError`, and what to do, for a file that begins as a pickle or is a Git LFS pointer; nothing is unpickled."""
    with reading(path), open(path, "rb") as file:
        _refuse_objects(path, file.read(_HEAD))


def holds_objects(head: bytes) -> bool:
    """Whether a file begins as a pickle of protocol 2 or later, as torch's zip of one, or as numpy's array of objects.

    >>> holds_objects(b"\\x80\\x04K\\x01."), holds_objects("\\u20ac".encode("utf-8")), holds_objects(b"text")
    (True, False, False)
    >>> holds_objects((640).to_bytes(8, "little") + b'{"a":')
    False
    """
    # A safetensors file begins with the length of its header in eight bytes, which may look like a pickle's first two.
    is_safetensors = head[4:9] == b"\0\0\0\0{"
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and not is_safetensors
    is_zip = head.startswith(b"PK\x03\x04")  # no zip is text or safetensors, and nearly all that come here are torch's
    return is_pickle or is_zip or (head.startswith(b"\x93NUMPY") and b"O'" in head[:_HEAD])


_HEAD = 256
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def _refuse_objects(path: Path, head: bytes) -> None:
    if head.startswith(_LFS_POINTER):
        raise UserError(f"{path} is a Git LFS pointer and not the file itself: run `git lfs pull` in its folder")
    if holds_objects(head[:_HEAD]):
        raise UserError(
            f"{path} is a pickle or a zip of pickles, which may run any code when it is opened, so it never is: where "
            "it was made, load it with torch.load(…, weights_only=True) and write its tensors with "
            "safetensors.torch.save_file, or its texts as UTF-8"
        )


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal, read block by block."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Makes the names in a folder durable; file systems that cannot do so for folders (Windows) are left alone."""
    if os.name == "posix":
        fsync_file(path)


def as_path(value: object, argument: str) -> Path:
    """The path that a caller gave as text or as a path; `UserError` that names the argument for anything else.

    >>> as_path("runs/demo", "folder").name
    'demo'
    """
    if not isinstance(value, (str, os.PathLike)):
        raise UserError(f"{argument} must be a path (a str or a Path), not {type(value).__name__}")
    return Path(value)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Inside the block, what the system refuses becomes a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Inside the block, what the system refuses is the user's to know, in one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {place}: {reason(error)}; what was written before is whole") from error


def require_writable(folder: Path) -> None:
    """Proves that a folder can be made and written, before hours of work depend on it; leaves nothing behind."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"cannot write {folder}: {place} is a file; choose another folder")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".glassformer-", dir=place))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {reason(error)}; choose a place that can be written") from error


def require_file_place(path: Path) -> None:
    """Proves that a file can be written there, before work depends on it; leaves nothing behind."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is to be written: give it a name")
    require_writable(path.parent)


def require_apart(output: Path, inputs: Iterable[Path]) -> None:
    """`UserError` where writing `output`, a file or a folder, would change or delete one of the inputs.

    Raised where `output` is an input, is inside an input folder, or has an input inside of it. Links are followed, and
    hard links to one file are one file.
    """
    place, own = _resolved(output), _identity(output)
    above = {_identity(parent) for parent in place.parents} - {None}
    for given in inputs:
        path, identity = _resolved(given), _identity(given)
        if path == place or (own is not None and identity == own):
            relation = "is the same as"
        elif path in place.parents or identity in above:
            relation = "is inside of"
        elif place in path.parents or (output.is_dir() and own in map(_identity, path.parents)):
            relation = "contains"
        else:
            continue
        raise UserError(f"{output} {relation} {given}, which is an input: choose another place for the output")


def require_new_folder(path: Path, inputs: Iterable[Path] = ()) -> None:
    """`UserError` unless a folder can be made at `path`: it is free, can be written, and is apart from the inputs."""
    if os.path.lexists(path):
        raise UserError(f"{path} exists already: name another folder")
    require_apart(path, inputs)
    require_writable(path)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle, or a NUL: nothing can be there
        return path.absolute()


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and the number of a file or folder, which all its names share; None where there is nothing."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A temporary folder beside `final` that becomes `final` when the block ends well, and vanishes when it does not.

    Every file in it is flushed to the disk before the rename. An existing `final` is replaced.
    """
    temporary = final.with_name(f".{final.name}.tmp-{os.getpid()}-{_host()}")
    try:
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
        fsync_folder(final.parent)
    except OSError as error:
        raise UserError(f"cannot write {final}: {reason(error)}; choose a place that can be written") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def clean_unfinished(parent: Path, name: str) -> None:
    """Deletes the temporary folders that `new_folder` has left in `parent` because its process was killed.

    `name` is a regular expression for the whole names that they were to get. A folder of a living process is never
    touched; where that cannot be known (another host's, as on a shared disk) it must lie untouched for a day.
    """
    pattern = re.compile(rf"\.(?:{name})\.tmp-(\d{{1,9}})(?:-([0-9a-f]{{8}}))?")
    with suppress(OSError):  # there is no such place yet, or another process cleans it too
        for path in list(parent.iterdir()):
            made_by = pattern.fullmatch(path.name)
            if made_by is None or path.is_symlink() or not path.is_dir():
                continue
            is_of_here = made_by[2] in (None, _host())
            is_alive = _is_alive(int(made_by[1])) if is_of_here else None
            if is_alive is False or (is_alive is None and _last_touch(path) < time.time() - _DAY):
                shutil.rmtree(path, ignore_errors=True)


def _host() -> str:
    """Eight hexadecimal digits that tell this host's process numbers from those of another host or container."""
    place = socket.gethostname()
    with suppress(OSError):
        place += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool | None:
    """Whether a process of this host runs; None where the system cannot be asked."""
    if os.name != "posix":
        return None  # there, signal 0 is Ctrl-C
    try:
        with suppress(PermissionError):  # somebody else's is there too
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _last_touch(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))


def _put_in_place(temporary: Path, final: Path) -> None:
    """Renames, in place of what stands there; another process may be doing the same."""
    for attempt in range(10):
        shutil.rmtree(final, ignore_errors=True)
        try:
            os.rename(temporary, final)
            return
        except OSError as error:
            if attempt == 9 or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
