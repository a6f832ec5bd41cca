"""Results become tables, a JSON file and the page of the documentation."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark_files import BENCHMARKS, ROOT, load, result


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
    path = tmp_path / "results.json"
    run.main(["learn", "multi30k", "--rounds", "2", "--json", str(path)])
    said = capsys.readouterr().out
    assert "learn: A title" in said and "2 rounds" in said
    assert "multi30k skipped: give the folder of train.en and train.de with --data FOLDER" in said
    [(name, found)] = load("results").read(path).items()
    assert name == "learn" and [len(row.seconds) for row in found.rows] == [2, 2]
    with pytest.raises(SystemExit):
        run.main(["lern"])
    assert "unknown benchmark 'lern'" in capsys.readouterr().err


def test_a_failed_preparation_fails_every_candidate_of_the_folder() -> None:
    run, catalogue = load("run"), load("catalogue")
    found = run.measure(replace(catalogue.start(), prepare=("start:none", {})), 1)
    assert {row.error for row in found.rows} == {"AttributeError: module 'start' has no attribute 'none'"}


def test_the_page_of_the_documentation_has_every_benchmark_and_the_figures_of_its_file() -> None:
    page, catalogue = load("page"), load("catalogue")
    text = page.PAGE.read_text("utf-8")
    names = [match[2] for match in page.BLOCK.finditer(text)]
    assert names == list(catalogue.BENCHMARKS)
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
