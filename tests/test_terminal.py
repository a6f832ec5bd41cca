"""The display of a run: aligned rows at every width, one line per message in a log file, nothing when quiet."""

import io
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from glassformer.evaluation.loss import LossReport
from glassformer.tasks.reporting import Evaluation, Silent
from glassformer.training.terminal import TerminalReporter, reporter_or_default

TRAIN = LossReport(2.0, 7.389, 1.5, 100)
VALID = LossReport(2.5, 12.18, 1.9, 50)


def evaluation(step: int, *, is_best: bool = True, sample: str | None = None, **scores: float) -> Evaluation:
    reports = {"train": TRAIN, "valid": VALID}
    return Evaluation(step, reports, scores, sample, "accuracy" if scores else "loss", is_best)


def reporter(width: int, *, is_quiet: bool = False, is_terminal: bool = False) -> tuple[TerminalReporter, io.StringIO]:
    shown, written = TerminalReporter(is_quiet=is_quiet), io.StringIO()
    shown.console = Console(file=written, width=width, force_terminal=is_terminal, color_system=None, soft_wrap=True)
    return shown, written


def test_rows_are_aligned_below_one_header() -> None:
    shown, written = reporter(60)
    shown.evaluation(evaluation(100))
    shown.evaluation(evaluation(200, is_best=False))
    assert written.getvalue().splitlines() == [
        "   step  train loss  eval loss  perplexity  bits/byte",
        "    100      2.0000     2.5000       12.18      1.900 *",
        "    200      2.0000     2.5000       12.18      1.900",
    ]


def test_a_large_perplexity_stays_in_its_column() -> None:
    shown, written = reporter(60)
    valid = LossReport(21.0, 1318815734.48, 1.9, 50)
    shown.evaluation(Evaluation(100, {"train": TRAIN, "valid": valid}, {}, None, "loss", False))
    assert written.getvalue().splitlines()[-1] == "    100      2.0000    21.0000    1.32e+09      1.900"


def test_the_best_value_has_the_name_of_its_score() -> None:
    shown, _ = reporter(60)
    shown.evaluation(evaluation(100))
    assert shown.best == "best 2.5000"
    shown.evaluation(evaluation(200, accuracy=81.5))
    assert shown.best == "best accuracy 81.50"


@pytest.mark.parametrize("width", [60, 80])
def test_the_bar_of_a_training_fits_on_one_line(width: int) -> None:
    shown, written = reporter(width, is_terminal=True)
    shown.live = True
    shown.evaluation(evaluation(1000))
    written.truncate(0)
    for step in (1001, 1002):
        shown.step(step, 12_000, {"train/loss": 2.25, "tokens_per_s": 123_456.0})
    assert shown.bar is not None
    shown.bar.refresh()
    shown.close()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue()).replace("\r", "\n").strip().splitlines()[-1]
    for part in ("1002/12000", "batch loss 2.2500", "123,456 tok/s"):
        assert part in last
    assert len(last) <= width


def test_a_notebook_has_one_output_whose_bar_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[dict[str, str]] = []
    outputs: list[object] = []

    class Output:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            pages.append(data)

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Output:
        pages.append(data)
        outputs.append(data)
        return Output()

    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("glassformer.training.terminal.Cell.drawn", -1.0)
    with reporter_or_default(None) as shown:
        shown.facts({"run": "<b>"})
        assert isinstance(shown, TerminalReporter) and shown.cell is not None
        for step in (1, 2):
            shown.cell.drawn = -1.0
            shown.step(step, 3, {"train/loss": 2.25, "tokens_per_s": 100.0})
        assert (
            pages[-1]["text/html"].count("<progress") == 1 and "step 2/3  batch loss 2.2500" in pages[-1]["text/html"]
        )
        shown.evaluation(evaluation(2))
    assert len(outputs) == 1 and "<progress" not in pages[-1]["text/html"] and "&lt;b&gt;" in pages[-1]["text/html"]
    lines = pages[-1]["text/plain"].splitlines()
    assert lines[0] == "run  <b>" and lines[1].split()[0] == "step" and len(lines) == 3


@pytest.mark.parametrize("width", [40, 60, 100])
def test_columns_that_do_not_fit_get_a_separate_line(width: int) -> None:
    shown, written = reporter(width)
    shown.evaluation(evaluation(100, accuracy=81.5, macro_f1=80.25, calibration_error=3.5))
    lines = written.getvalue().splitlines()
    assert all(len(line) <= width for line in lines[:2])
    assert "accuracy" in written.getvalue() and "3.50" in written.getvalue()
    assert (len(lines) == 3) == (width < 100)


def test_a_sample_is_one_line_without_control_characters() -> None:
    shown, written = reporter(60)
    shown.evaluation(evaluation(1, sample="to be\n[bold]or\x1b[31m not"))
    assert written.getvalue().splitlines()[-1] == "  to be [bold]or [31m not"


def test_facts_wrap_only_on_a_terminal() -> None:
    for is_terminal, n_lines in ((True, 3), (False, 2)):
        shown, written = reporter(40, is_terminal=is_terminal)
        shown.facts({"run": "a", "data": "many training tokens and few validation tokens", "empty": ""})
        lines = written.getvalue().splitlines()
        assert len(lines) == n_lines and lines[0] == "run   a" and lines[1].startswith("data  many")
        assert is_terminal is (lines[-1].startswith("      "))


def test_a_log_file_has_few_steps_and_the_last_one() -> None:
    shown, written = reporter(80)
    for step in range(1, 101):
        shown.step(step, 100, {"train/loss": 2.0, "tokens_per_s": 1234.0} | ({"mfu": 0.404} if step == 100 else {}))
    assert [line.split()[1] for line in written.getvalue().splitlines()] == ["1/100", "100/100"]
    first, last = written.getvalue().splitlines()
    assert "batch loss 2.0000  1,234 tok/s" in first and "MFU" not in first
    assert "1,234 tok/s, 40 % MFU" in last


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the clock of the display by one that only the test moves."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr("glassformer.training.terminal.time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def test_a_log_file_has_a_line_of_a_phase_every_ten_seconds(clock: SimpleNamespace) -> None:
    shown, written = reporter(80)
    with shown.phase("translating") as progress:
        for done in range(1, 6):
            clock.seconds += 4
            progress(done, 1000)
    lines = ["translating 3/1,000  0.2/s  1:06:28 left", "translating: 20.0 s"]
    assert written.getvalue().splitlines() == lines


def test_a_short_or_quiet_phase_prints_nothing(clock: SimpleNamespace) -> None:
    for is_quiet, seconds in ((False, 0.5), (True, 50.0)):
        shown, written = reporter(80, is_quiet=is_quiet)
        with shown.phase("translating") as progress:
            clock.seconds += seconds
            progress(1, 2)
        assert written.getvalue() == ""


@pytest.mark.parametrize("width", [30, 80])
def test_the_bar_of_a_phase_has_counts_and_the_remaining_time(width: int, clock: SimpleNamespace) -> None:
    shown, written = reporter(width, is_terminal=True)
    shown.live = True
    with shown.phase("translating") as progress:
        clock.seconds += 4
        progress(8, 1000)
    lines = [re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]+", written.getvalue())]
    assert max(map(len, lines)) <= width
    assert width < 80 or any("translating 8/1,000  2.0/s  8:16 left" in line for line in lines)


def test_a_quiet_reporter_shows_only_messages() -> None:
    shown, written = reporter(80, is_quiet=True)
    shown.facts({"run": "a"})
    shown.step(1, 1, {"train/loss": 2.0, "tokens_per_s": 1.0})
    shown.evaluation(evaluation(1))
    shown.log("the disk is nearly full")
    assert written.getvalue() == "the disk is nearly full\n"


def test_only_rank_0_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    TerminalReporter().log("hello")
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_call_from_python_is_silent() -> None:
    with reporter_or_default(None) as shown:
        assert isinstance(shown, Silent)
    mine = Silent()
    with reporter_or_default(mine) as shown:
        assert shown is mine


def test_json_of_train_has_five_keys(glassformer_json: dict[str, object]) -> None:
    assert list(glassformer_json) == ["folder", "name", "seconds", "reports", "notes"]


@pytest.fixture
def glassformer_json(capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    from glassformer.apps.cli.main import run

    out = tmp_path_factory.mktemp("json") / "run"
    assert run(["train", "copy-task", "--train.max-steps", "1", "--quiet", "--json", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return dict(json.loads(printed.out))
