"""Files: complete writes or no file, bounded reads, and errors that name the place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.common import files
from glassformer.common.errors import UserError


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a" / "b" / "c.txt", "é\r\n")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == "é\r\n".encode()
    assert names(tmp_path / "a" / "b") == {"c.txt"}


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*a\.txt: No space left on device"):
        files.write_text(path, "new")
    assert path.read_text() == "old" and names(tmp_path) == {"a.txt"}


@pytest.mark.parametrize("place", ["file/x", "file/x/y/z", "/dev/null/x", "/proc/nothing/x"])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write"):
        files.write_bytes(tmp_path / place, b"")
    with pytest.raises(UserError, match="cannot write"):
        files.require_writable(tmp_path / place)
    with pytest.raises(UserError, match="cannot write"), files.new_folder(tmp_path / place):
        pass
    assert names(tmp_path) == {"file"}


def test_the_check_for_a_writable_folder_leaves_nothing(tmp_path: Path) -> None:
    files.require_writable(tmp_path / "a" / "b")
    files.require_writable(tmp_path)
    assert names(tmp_path) == set()


def test_a_new_folder_is_complete_and_replaces_the_old(tmp_path: Path) -> None:
    final = tmp_path / "x" / "final"
    for word in ("one", "two"):
        with files.new_folder(final) as folder:
            (folder / word).mkdir()
            (folder / word / "file").write_text(word)
            assert not (final / word).exists()
        assert names(final) == {word} and names(final.parent) == {"final"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError, ZeroDivisionError])
def test_a_new_folder_is_removed_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old").write_text("")
    with pytest.raises(error), files.new_folder(tmp_path / "final") as folder:
        (folder / "new").write_text("")
        raise error
    assert names(tmp_path) == {"final"} and names(tmp_path / "final") == {"old"}


KILLED = """
import os, shutil, sys
from pathlib import Path
from glassformer.common import files

n_left, renamed, deleted = int(sys.argv[2]), os.rename, shutil.rmtree

def counted(work):
    def call(*args, **options):
        global n_left
        if n_left == 0:
            os._exit(9)
        n_left -= 1
        work(*args, **options)
    return call

with files.new_folder(Path(sys.argv[1])) as folder:
    (folder / "new").write_text("")
    os.rename, shutil.rmtree = counted(renamed), counted(deleted)
"""


@pytest.mark.parametrize("n_done", range(6))
def test_a_process_killed_while_it_replaces_a_folder_leaves_the_old_or_the_new(tmp_path: Path, n_done: int) -> None:
    final = tmp_path / "final"
    final.mkdir()
    (final / "old").write_text("")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(final), str(n_done)], timeout=100).returncode
    assert killed == (9 if n_done < 5 else 0)
    files.clean_unfinished(tmp_path, "final")
    assert names(tmp_path) == {"final"} and names(final) in ({"old"}, {"new"})


def test_a_replaced_folder_whose_name_is_a_pattern_is_restored(tmp_path: Path) -> None:
    for name in ("run[1]", "run1"):
        (tmp_path / f".{name}.tmp-1-replaced").mkdir()
    files.restore_replaced(tmp_path, "run[1]")
    assert names(tmp_path) == {"run[1]", ".run1.tmp-1-replaced"}


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def fails(old: Path, new: Path) -> None:
        if ".tmp-" in old.name and not old.name.endswith("-replaced"):
            raise OSError(5, "Input/output error")
        rename(old, new)

    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old").write_text("")
    monkeypatch.setattr(os, "rename", fails)
    with (
        pytest.raises(UserError, match=r"cannot write .*final: Input/output error"),
        files.new_folder(tmp_path / "final"),
    ):
        pass
    assert names(tmp_path) == {"final"} and names(tmp_path / "final") == {"old"}


def test_a_read_error_names_the_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(UserError, match="no such file"):
        files.read_text(path)
    with pytest.raises(UserError, match="is a folder"):
        files.read_text(tmp_path)
    path.write_bytes(b"line\nab\xff")
    with pytest.raises(UserError, match=r"not UTF-8: byte 0xff at offset 7 \(line 2\); convert"):
        files.read_text(path)
    with pytest.raises(UserError, match="8 bytes, more than the limit of 5"):
        files.read_bytes(path, max_bytes=5)
    path.write_text("{")
    with pytest.raises(UserError, match=r"a\.txt is not valid JSON"):
        files.read_json(path)
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not valid JSON"):
        files.read_json(path)


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa")
    assert files.read_text(tmp_path / "a.txt") == "a"


def test_json_has_no_infinity(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"é": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"é": [1, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "b.json", float("inf"))


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert files.sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
