"""The page of a sweep shows the table that Python computes, also while the sweep runs, and opens its models."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from glassformer.apps.inspector.panels.models import read_table
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.evaluation.sweep_table import FILE, SweepTable
from glassformer.evaluation.verdict import verdicts
from glassformer.model import Model
from glassformer.store.lock import locked
from inspector.browsing import Open
from inspector.conftest import Serve
from inspector.direct import Inspector

BASE, WIDE, DEEP = "d_model=8 d_ff=16", "d_model=16 d_ff=16", "d_model=8 d_ff=32"


def a_table() -> SweepTable:
    """Return a table of a sweep that runs: one variant has its verdict, one has a single seed."""
    values = {BASE: {0: 2.01, 1: 1.98, 2: 2.03}, WIDE: {0: 1.91, 1: 1.89, 2: 1.93}, DEEP: {0: 2.05}}
    folders = {label: f"{n}-x" for n, label in enumerate(values)}
    table = SweepTable("bits_per_byte", BASE, values, folders=folders)
    table.verdicts = verdicts(values[BASE], {WIDE: values[WIDE]}, higher_is_better=False)
    return table


def write(folder: Path, table: SweepTable) -> Path:
    files.write_json(folder / FILE, asdict(table))
    return folder


def test_the_table_is_the_one_of_python_and_a_run_can_be_opened(models: dict[str, Model], tmp_path: Path) -> None:
    table, folder = a_table(), write(tmp_path / "sweep", a_table())
    assert read_table(folder) == table
    inspector = Inspector(None, folder=folder)
    with locked(folder):
        shown = inspector.sweep()
    assert shown["is_running"] and inspector.session()["is_sweep"] and not inspector.sweep()["is_running"]
    assert [shown["rows"], shown["cells"], shown["legend"]] == [table.to_dict()["rows"], table.cells(), table.legend]
    base, wide, deep = table.rows()
    assert base["verdict"] == "baseline" and wide["verdict"] == "better" and wide["p"] is not None
    assert deep["verdict"] == "so far" and deep["p"] is None and deep["difference"] == pytest.approx(0.04)
    run = shown["runs"][WIDE][1]
    assert models["decoder"].folder is not None
    shutil.copytree(models["decoder"].folder, run)
    card = inspector.open(folder=run)
    assert card["folder"] == run and Inspector(None, folder=folder).card(card["model"])["folder"] == run
    for name in (str(tmp_path), f"{run}/..", str(folder / "2-x" / "seed-0")):
        with pytest.raises(UserError, match="has not opened the folder"):
            inspector.open(folder=name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{]", "is not valid JSON"),
        ("[1]", "is no table of a sweep: run the sweep again, which keeps its runs"),
        (json.dumps(asdict(a_table()) | {"values": {BASE: {"x": 1}}}), "is no table of a sweep"),
        (json.dumps(asdict(a_table()) | {"metric": "beauty"}), "is no table of a sweep"),
        (json.dumps(asdict(a_table()) | {"baseline": "none"}), "is no table of a sweep"),
    ],
)
def test_a_damaged_table_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError, match=message):
        Inspector(None, folder=tmp_path).sweep()


def test_the_page_follows_the_sweep(serve: Serve, visit: Open, tmp_path: Path) -> None:
    table, folder = a_table(), write(tmp_path / "sweep", a_table())
    with locked(folder):
        found = visit(serve(Inspector(None, folder=folder)).address)
        rows = found.page.locator(".results tbody tr")
        rows.first.wait_for()
        assert [rows.nth(i).locator("td").first.inner_text() for i in range(3)] == ["baseline", "better", "so far"]
        assert found.page.locator("svg circle").count() == 7
        table.add(DEEP, 1, {"value": 2.02, "curve": []})
        write(folder, table)
        found.until("() => document.querySelectorAll('svg circle').length === 8")
    variant, verdict, mean, error, difference, of, p, seeds = table.cells()[3]
    assert rows.nth(2).locator("th, td").all_inner_texts() == [
        variant.replace(" ", "\n"),
        verdict,
        f"{mean} ± {error}",
        f"{difference} ± {of}",
        p,
        seeds,
        "01",
    ]
