"""How the disk is touched: atomic writes, bounded reads, hashes.

A file or folder that these functions write exists whole, or not at all: the bytes go to a temporary name in the
same folder, are flushed to the disk (fsync), and are then renamed, which is atomic on one file system.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glassformer.errors import UserError

MAX_JSON_BYTES = 256 * 1024 * 1024
_BLOCK = 1 << 20


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
        if temporary.exists():
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes JSON with sorted keys off and NaN refused, so that the bytes are the same for the same value."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Reads a whole file that may not be larger than `max_bytes`."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise UserError(f"{path} is a folder, and a file is needed")
        if size > max_bytes:
            raise UserError(f"{path} has {size:,} bytes, more than the {max_bytes:,} that are read at once")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"no such file: {path}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Reads a UTF-8 file, with or without a byte order mark; invalid bytes are named, never replaced."""
    data = read_bytes(path, max_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start} (line {line}); "
            "convert it to UTF-8 first"
        ) from error


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error


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
    probe = place / f".glassformer-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise UserError(f"cannot write {folder}: {reason(error)}; choose a place that can be written") from error


def require_file_place(path: Path) -> None:
    """Proves that a file can be written there, before work depends on it; leaves nothing behind."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is to be written: give it a name")
    require_writable(path.parent)


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A temporary folder beside `final` that becomes `final` when the block ends well, and vanishes when it does not.

    Every file in it is flushed to the disk before the rename. An existing `final` is replaced.
    """
    temporary = final.with_name(f".{final.name}.tmp-{os.getpid()}")
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
