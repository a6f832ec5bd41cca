"""Results on a terminal."""

import random
import sys

import pytest

from glassformer.common.formatting import show, table, wrapped


@pytest.mark.parametrize("width", [40, 60, 80])
def test_long_lines_of_a_result_are_wrapped_at_words_below_their_last_column(width: int) -> None:
    line = "ok      cache  logits with and without a cache differ by 1.1e-15 of their scale"
    parts = wrapped(f"{line}\n\n  short", width).splitlines()
    assert all(len(part) <= width for part in parts) and parts[-2:] == ["", "  short"]
    assert all(part.startswith(" " * 15) for part in parts[1:-2])
    assert " ".join(" ".join(parts[:-2]).split()) == " ".join(line.split())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_result_is_wrapped_on_a_terminal_only(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    show("name  a description of more than thirty columns")
    assert capsys.readouterr().out.count("\n") == (2 if is_terminal else 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_table_fits_and_keeps_every_value(seed: int) -> None:
    rng = random.Random(seed)
    n_columns = rng.randint(2, 8)
    rows = [[f"{'name' if row == 0 else 'v'}{row}-{column}" for column in range(n_columns)] for row in range(5)]
    for width in (None, 120, 60, 40):
        shown = table(rows, width, n_words=rng.randint(1, 2))
        assert width is None or max(map(len, shown.splitlines())) <= width
        assert all(value in shown for row in rows[1:] for value in row)
        assert all(name in shown for name in rows[0][1:])
