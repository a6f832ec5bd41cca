"""Results become tables, a JSON file and the page of the documentation."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmark_files import BENCHMARKS, ROOT, load, result

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""Variables that hide other instructions from PyTorch's libraries."""


def test_the_table_has_medians_and_medians_of_ratios() -> None:
    tables = load("tables")
    whole, best = tables.tables(result())
    assert whole == [
        ["", "setting", "time", "tokens/s", "of matrix products", "time ratio", "peak memory"],
        ["glassformer", "fp32", "2.00 s", "5.00", "50%", "1.00", "5 MB"],
        ["peer", "fp32", "3.00 s", "3.33", "33%", "1.50", "5 MB"],
        ["glassformer", "bf16", "1.00 s", "10.0", "50%", "1.00", "5 MB"],
        ["peer", "bf16", "failed", "", "", "", ""],
    ]
    assert [row[:2] + row[5:6] for row in best[1:]] == [["glassformer", "bf16", "1.00"], ["peer", "fp32", "3.00"]]
    assert tables.failures(result()) == ["peer, bf16 failed: no bf16"]
    assert tables.as_text(whole).splitlines()[1].split() == [
        "glassformer",
        "fp32",
        "2.00",
        "s",
        *whole[1][3:6],
        "5",
        "MB",
    ]
    assert tables.as_markdown(whole).splitlines()[1] == "| --- | --- | ---: | ---: | ---: | ---: | ---: |"


def test_a_table_has_the_best_peer_first() -> None:
    """The reference is the first row of its setting, the slowest peer the last one before those that failed."""
    tables, results = load("tables"), load("results")
    given = [
        ("slow", "a", 2.0),
        ("broken", "a", 0.0),
        ("glassformer", "a", 2.0),
        ("fast", "b", 1.0),
        ("fast", "a", 3.0),
    ]
    amounts = {"slow": 0.5, "fast": 3.0}  # the time per unit of work counts, not that of a call
    rows = [
        results.Row(name, setting, seconds=[time] * bool(time), facts={"amount": amounts.get(name, 1.0)})
        for name, setting, time in given
    ]
    whole, best = tables.tables(result(work="", share="", rows=rows))
    assert [row[:2] for row in whole[1:]] == [
        ["glassformer", "a"],
        ["fast", "a"],
        ["slow", "a"],
        ["broken", "a"],
        ["fast", "b"],
    ]
    assert [row[0] for row in best[1:]] == ["glassformer", "fast", "slow"]


def test_results_are_kept_in_json_beside_those_of_other_benchmarks(tmp_path: Path) -> None:
    results, path = load("results"), tmp_path / "results.json"
    results.write(path, {"one": result()})
    results.write(path, {"two": result(title="Another"), "one": result(work="")})
    assert results.read(path) == {"one": result(work=""), "two": result(title="Another")}
    path.write_text('{"format": 0, "benchmarks": {}}')
    with pytest.raises(SystemExit, match="expected format 1, got 0"):
        results.read(path)


def test_the_page_is_written_from_results(tmp_path: Path) -> None:
    page, results, path = load("page"), load("results"), tmp_path / "page.md"
    path.write_text("# Title\n<!-- results of one -->\nold\n<!-- end of one -->\nProse.\n")
    results.write(tmp_path / "results.json", {"one": result()})
    page.write_page(tmp_path / "results.json", path)
    text = path.read_text()
    assert "old" not in text and text.startswith("# Title\n") and text.endswith("\nProse.\n")
    assert "| peer | fp32 | 3.00 s | 3.33 | 33% | 1.50 | 5 MB |" in text
    assert "matrix products: fp32 1 GFLOP/s, bf16 2 GFLOP/s." in text
    page.write_page(tmp_path / "none.json", path)
    assert "Not measured yet." in path.read_text()


def test_the_command_runs_a_benchmark_and_writes_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, catalogue, turns = load("run"), load("catalogue"), load("turns")
    arguments = {"scheme": "byte", "vocab_size": 300, "n_bytes": 2000}
    made = [
        turns.Candidate(name, "text:learn", {"learner": name, **arguments}) for name in ("glassformer", "rescanning")
    ]
    monkeypatch.setitem(run.BENCHMARKS, "learn", lambda: catalogue.Benchmark("A title", made, rounds=9))
    monkeypatch.setattr(run, "machine", lambda device: ("2 cores", True))
    path = tmp_path / "results.json"
    run.main(["learn", "multi30k", "--rounds", "2", "--json", str(path)])
    said = capsys.readouterr().out
    assert "learn: A title" in said and "2 rounds" in said and "2 cores" in said
    assert "multi30k skipped: give the folder of train.en and train.de with --data FOLDER" in said
    [(name, found)] = load("results").read(path).items()
    assert name == "learn" and [len(row.seconds) for row in found.rows] == [2, 2]
    with pytest.raises(SystemExit):
        run.main(["lern"])
    assert "unknown benchmark 'lern'" in capsys.readouterr().err


def test_settings_without_a_gain_are_skipped_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The instructions are hidden from the processes of the candidates, as on a processor without them."""
    for variable, value in AVX2.items():
        monkeypatch.setenv(variable, value)
    run, catalogue, turns = load("run"), load("catalogue"), load("turns")
    run.machine.cache_clear()
    work = {"learner": "glassformer", "scheme": "byte", "vocab_size": 300, "n_bytes": 2000}
    made = [turns.Candidate("glassformer", "text:learn", work, f"{name}, tiny", name) for name in ("fp32", "bf16")]
    benchmark = catalogue.Benchmark("A title", made, rounds=1, share="matrix products", work="tokens", device="cpu")
    monkeypatch.setitem(run.BENCHMARKS, "learn", lambda: benchmark)
    rates, found_rates = run.rates, list[dict[str, float]]()

    def measured_once(arguments: dict[str, object]) -> dict[str, float]:
        if not found_rates:
            found_rates.append(rates({**arguments, "sizes": [64], "copied_bytes": 1 << 16}))
        return found_rates[0]

    monkeypatch.setattr(run, "rates", measured_once)
    path = tmp_path / "results.json"
    run.main(["learn", "--json", str(path)])
    run.machine.cache_clear()
    said = capsys.readouterr().out
    assert "skipped: bf16, tiny, bf16 has no gain on this processor\n" in said and "learn: A title" in said
    found = load("results").read(path)["learn"]
    assert [row.setting for row in found.rows] == ["fp32, tiny"] and len(found.rows[0].seconds) == 1
    assert found.rates.keys() == {"fp32", "copy"} and " AVX2" in found.made["processor"]
    assert "not measured: bf16, tiny" in found.made["skipped"]


def test_every_setting_gets_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run, catalogue = load("run"), load("catalogue")
    benchmark = catalogue.train_translation()
    ends = []
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: 100.0 + 30 * len(ends)))
    monkeypatch.setattr(run, "take_turns", lambda *given, end: ends.append(end) or [])
    run.turns(benchmark, list(benchmark.candidates), 3, 220.0)
    assert ends == [100 + 120 / 2, 130 + 90]


def test_all_candidates_of_a_setting_take_turns_together(monkeypatch: pytest.MonkeyPatch) -> None:
    run, catalogue, groups = load("run"), load("catalogue"), []
    benchmark = catalogue.decode_gpt2()
    monkeypatch.setattr(run, "take_turns", lambda group, *given, end: groups.append(group) or [])
    run.turns(benchmark, list(benchmark.candidates), 3, 1.0)
    settings = [{one.setting for one in group} for group in groups]
    assert all(len(names) == 1 for names in settings) and len(set().union(*settings)) == len(settings)
    assert sum(map(len, groups)) == len(benchmark.candidates)


def test_a_failed_preparation_fails_every_candidate_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    run, catalogue = load("run"), load("catalogue")
    monkeypatch.setattr(run, "machine", lambda device: ("2 cores", True))
    found = run.measure(replace(catalogue.start(), prepare=("start:none", {})), 1)
    assert {row.error for row in found.rows} == {"AttributeError: module 'start' has no attribute 'none'"}


def test_the_page_of_the_documentation_has_every_benchmark_and_the_figures_of_its_file() -> None:
    page, catalogue = load("page"), load("catalogue")
    text = page.PAGE.read_text("utf-8")
    names = [match[2] for match in page.BLOCK.finditer(text)]
    assert names == [*catalogue.BENCHMARKS, *catalogue.ON_GPU]
    assert re.findall(r"^## ([a-z][\w-]+)$", text, re.MULTILINE) == names
    assert page.page(text, load("results").read(page.RESULTS)) == text, "run: python benchmarks/run.py --page"


def test_the_page_names_files_and_options_that_exist() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    for path in re.findall(r"`((?:benchmarks|src)/[\w/]+\.py)`", text):
        assert (ROOT / path).is_file(), path
    options = set(re.findall(r"^\| `(--[\w-]+)", text, re.MULTILINE))
    known = set(re.findall(r'add_argument\("(--[\w-]+)', (BENCHMARKS / "run.py").read_text("utf-8")))
    assert options == known


@pytest.mark.parametrize(("target", "path"), [("bench", "benchmarks/run.py"), ("gpu", "benchmarks/gpu.py")])
def test_make_runs_files_that_exist(target: str, path: str) -> None:
    [recipe] = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    paths = re.findall(r"benchmarks/\w+\.py", recipe)
    assert path in paths and all((ROOT / path).is_file() for path in paths)
