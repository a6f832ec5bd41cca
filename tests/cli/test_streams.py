"""Standard streams that are closed or cannot be written: one sentence, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.children import done
from glassformer.apps.cli.main import ClosedOutput, main, run
from glassformer.tasks.reporting import Outcome

CLOSED = "glassformer: cannot write standard output: it is closed"


def shell(command: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `glassformer` in a shell, which can close a stream."""
    return subprocess.run(
        command.replace("glassformer", f"{sys.executable} -m glassformer", 1),
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("close_", ["<&-", "< /dev/null"])
def test_generate_without_standard_input_asks_for_a_prompt(
    close_: str, trained: Outcome, environment: dict[str, str], tmp_path: Path
) -> None:
    found = shell(f"glassformer generate {trained.folder} {close_}", environment, tmp_path)
    assert found.returncode == 2
    assert (
        found.stderr.startswith("glassformer: no prompt given: give a text or --input FILE")
        and found.stderr.count("\n") == 1
    )


def test_closed_standard_output_is_one_sentence(environment: dict[str, str], tmp_path: Path) -> None:
    found = shell("glassformer --help >&-", environment, tmp_path)
    assert found.returncode == 2
    assert CLOSED in found.stderr and found.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["presets", "recipes copy-task", "generate {} --prompt a", "doctor {}"])
def test_every_verb_reports_a_closed_standard_output(
    verb: str, trained: Outcome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", ClosedOutput())
    assert run(verb.format(trained.folder).split()) == 2
    found = capsys.readouterr().err
    assert CLOSED in found and found.count("\n") == 1


def test_a_verb_that_prints_nothing_needs_no_standard_output(trained: Outcome, tmp_path: Path) -> None:
    """In a child of this process, without the three standard streams."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    words = f"{trained.folder} --input in.jsonl --output out.jsonl --max-new-tokens 2"

    def work() -> None:
        os.chdir(tmp_path)
        os.closerange(0, 3)
        sys.stdin = sys.stdout = sys.stderr = None  # type: ignore[assignment]
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["generate", *words.split()])

    assert done(work) == 0
    assert (tmp_path / "out.jsonl").read_text().startswith('{"prompt": "a", "text": ')


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("verb", ["--help", "presets", "recipes"])
def test_standard_output_on_a_full_disk_is_one_sentence(verb: str, environment: dict[str, str], tmp_path: Path) -> None:
    found = shell(f"glassformer {verb} > /dev/full", environment, tmp_path)
    assert found.returncode == 2
    assert "standard output: No space left on device" in found.stderr and found.stderr.count("\n") == 1
