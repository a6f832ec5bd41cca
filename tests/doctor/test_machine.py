"""`doctor --machine` compares the choices of the table with plain PyTorch and with every fast path."""

import json
import time
from dataclasses import replace

import pytest
import torch

from glassformer.cli.main import main
from glassformer.doctor import machine
from glassformer.doctor.machine import MachineReport, Row, measure_machine
from glassformer.kernels import processor
from glassformer.kernels.processor import PLAIN, Choices


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SECONDS", 0.0)
    monkeypatch.setattr(machine, "ROUNDS", 1)
    for name, size in (("N_LAYERS", 1), ("WIDTH", 64), ("OUT", 64), ("VOCABULARY", 64), ("ATTENDED", 1024)):
        monkeypatch.setattr(machine, name, size)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("choices", [PLAIN, processor.this.choices])
def test_every_fast_path_is_measured(choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variant runs under its own choices, and the choices are as before afterwards."""
    monkeypatch.setattr(processor, "this", replace(processor.this, choices=choices))
    seen, done = set(), []
    works = machine._works

    def watched(has_bfloat16: bool) -> object:
        for name, make in works(has_bfloat16):
            yield name, lambda make=make: seen.add(processor.this.choices) or make()

    monkeypatch.setattr(machine, "_works", watched)
    report = measure_machine(lambda *counts: done.append(counts))
    assert processor.this.choices == choices == report.choices
    assert seen == {PLAIN, choices, machine._everything(processor.this)}
    assert done[-1] == (len(report.rows), len(report.rows))
    assert {row.work.split(",")[0] for row in report.rows} >= {"decoding product fp32", "vocabulary of 64 fp32"}
    assert all(min(row.seconds.values()) > 0 for row in report.rows)
    if choices == PLAIN:
        assert all(row.gain == 1.0 for row in report.rows) and "choices    plain PyTorch" in str(report)


@pytest.mark.usefixtures("quick")
def test_each_variant_is_timed_under_its_own_choices() -> None:
    def make() -> machine.Call:
        choices = processor.this.choices

        def call() -> None:
            assert processor.this.choices == choices
            time.sleep(0.002 if choices == PLAIN else 0.0)

        return call

    seconds = machine._in_turns(make, {"plain": PLAIN, "table": Choices(packed_rows=1), "all": PLAIN})
    assert seconds["table"] != seconds["plain"] == seconds["all"] >= 0.002


@pytest.mark.parametrize(
    ("seconds", "remark"),
    [
        ({"plain": 1.0, "table": 0.5, "all": 0.5}, ""),
        ({"plain": 1.0, "table": 1.01, "all": 0.99}, ""),
        ({"plain": 1.0, "table": 1.2, "all": 1.0}, "slower than plain PyTorch"),
        ({"plain": 1.0, "table": 1.0, "all": 0.8}, "a fast path gains 1.25"),
    ],
)
def test_a_report_names_what_the_table_should_change(seconds: dict[str, float], remark: str) -> None:
    report = MachineReport("a CPU", 2, PLAIN, (Row("a product", seconds),))
    assert report.rows[0].remark == remark
    assert str(report).splitlines()[-1].endswith(remark or f"{report.rows[0].gain:.2f}")


def test_the_verb_prints_the_table_or_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    slow = Row("a product", {"plain": 1.0, "table": 2.0, "all": 1.0})
    monkeypatch.setattr(
        machine, "measure_machine", lambda progress: MachineReport("a CPU", 2, Choices(packed_rows=1), (slow,))
    )
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--machine"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and "processor  a CPU, 2 threads" in printed and "packed_rows 1" in printed
    with pytest.raises(SystemExit):
        main(["doctor", "--machine", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["seconds"]["table"] == 2.0 and found["torch"] == torch.__version__


@pytest.mark.parametrize("words", [[], ["runs/x", "--machine"]])
def test_the_verb_needs_a_model_or_the_machine(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    assert ended.value.code == 2
    assert "doctor needs a model directory or --machine, and not both" in capsys.readouterr().err
