"""Sweeps of tiny runs in real processes, and the rule that adds seeds, on made-up values."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer import api
from glassformer.apps.inspector.panels.models import read_table
from glassformer.apps.sweep import plan
from glassformer.apps.sweep.plan import Budget, Sweep, chosen_metric, split_table, varied
from glassformer.apps.sweep.runner import Runner, judge, visible_gpus
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.run import Run
from glassformer.config.train import AdamWConfig, EarlyStopping
from glassformer.evaluation.sweep_table import SweepTable
from glassformer.evaluation.verdict import LEVEL, decimals
from glassformer.store import checkpoint
from glassformer.training.metrics_log import read_lines
from runs import label_run, metrics, pair_run, tiny_run, write_text

RATES = {"learning_rate": [0.001, 0.01]}


def short_run(folder: Path, **train: Any) -> Run:
    given = {"max_steps": 6, "eval_every": 3, "optimizer": AdamWConfig(), "precision": "fp32", "compile": False}
    return tiny_run(write_text(folder), **(given | train))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path, SweepTable]:
    """A sweep of two learning rates with two seeds each; tests copy its folder before they change it."""
    folder = tmp_path_factory.mktemp("sweep")
    run = short_run(folder)
    return run, folder / "out", glassformer.sweep(run, RATES, seeds=2, out=folder / "out", jobs=2)


def test_every_run_is_the_run_that_train_gives_with_its_seed(
    made: tuple[Run, Path, SweepTable], tmp_path: Path
) -> None:
    run, folder, table = made
    for number, rate in enumerate(RATES["learning_rate"]):
        for seed in range(2):
            name = f"learning_rate={rate}"
            alone = api.train(run, tmp_path / f"{name}-{seed}", learning_rate=rate, seed=seed)
            assert table.values[name][seed] == alone.reports["valid"].bits_per_byte
            kept = folder / f"{number}-{name}" / f"seed-{seed}"
            assert (kept / "model.safetensors").read_bytes() == (alone.folder / "model.safetensors").read_bytes()
            assert api.load(kept).generate("a ", max_new_tokens=2) is not None
            assert not (kept / checkpoint.FOLDER).exists()
            lines = [line for line in metrics(alone.folder) if "eval/valid_loss" in line]
            assert table.curves[name][seed] == [(line["step"], line["eval/valid_bits_per_byte"]) for line in lines]


def test_the_table_is_computed_from_the_values(made: tuple[Run, Path, SweepTable]) -> None:
    _, folder, table = made
    assert read_table(folder) == replace(table, curves={}), "the page of the sweep has the same table"
    assert (folder / table.folders["learning_rate=0.01"] / "seed-1" / "model.safetensors").exists()
    baseline, other = (table.values[f"learning_rate={rate}"] for rate in RATES["learning_rate"])
    first, second = table.rows()
    assert first["verdict"] == "baseline" and first["difference"] is None and first["seeds"] == 2
    assert second["difference"] == pytest.approx(sum(other[seed] - baseline[seed] for seed in range(2)) / 2)
    assert second["mean"] == pytest.approx(sum(other.values()) / 2)
    assert json.loads(json.dumps(table.to_dict()))["rows"][1]["values"] == {"0": other[0], "1": other[1]}
    assert table.csv().splitlines()[0].startswith("variant,seeds,mean,error")
    assert len(table.csv().splitlines()) == 3
    assert "± is the standard error; lower is better" in str(table) and "learning_rate=0.01 " in str(table)


def test_the_same_call_reads_what_is_done_and_more_seeds_add_runs(
    made: tuple[Run, Path, SweepTable], tmp_path: Path
) -> None:
    run, folder, table = made
    shutil.copytree(folder, tmp_path / "out")
    said: list[str] = []
    again = glassformer.sweep(run, RATES, seeds=2, out=tmp_path / "out", jobs=1, report=said.append)
    assert again.to_dict() == table.to_dict() and not said
    more = glassformer.sweep(run, RATES, seeds=3, out=tmp_path / "out", report=said.append)
    assert all({0, 1, 2} == of_seeds.keys() for of_seeds in more.values.values()) and len(said) == 2
    assert all(more.values[name][0] == table.values[name][0] for name in table.values)
    assert not again.note and "judged before, with 2 seeds" in str(more)
    turned = glassformer.sweep(run, RATES, seeds=2, against="learning_rate=0.01", out=tmp_path / "out", jobs=1)
    assert turned.values == table.values and len(list((tmp_path / "out").glob("*-*"))) == 2, "no run is trained again"


def test_another_sweep_or_other_files_in_the_folder_are_refused(made: tuple[Run, Path, SweepTable]) -> None:
    run, folder, _ = made
    with pytest.raises(UserError, match="has a sweep with other variants"):
        glassformer.sweep(run, {"learning_rate": [0.001, 0.02]}, seeds=2, out=folder)
    with pytest.raises(UserError, match="has a sweep with other metric"):
        glassformer.sweep(run, RATES, seeds=2, out=folder, metric="loss")
    with pytest.raises(UserError, match="is not empty"):
        glassformer.sweep(run, RATES, out=folder.parent)
    assert not (folder.parent / ".lock").exists()


def command(folder: Path, out: Path) -> subprocess.Popen[str]:
    """Start the sweep of `made` as a command."""
    toml = folder / "base.toml"
    words = ["sweep", str(toml), "--vary", "learning_rate=0.001,0.01", "--seeds", "2", "--out", str(out), "--json"]
    words += ["--jobs", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "glassformer", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background may ignore it
    )


@pytest.mark.parametrize("which", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_sweep_that_was_stopped_continues_to_the_same_table(
    which: str, made: tuple[Run, Path, SweepTable], tmp_path: Path
) -> None:
    """It is stopped as soon as a run has its first checkpoint, and as soon as a run is done; then it continues."""
    _, folder, table = made
    (tmp_path / "base.toml").write_text((folder / "0-learning_rate=0.001" / "seed-0" / "run.toml").read_text())
    out, n_stopped = tmp_path / "out", 0
    for pattern in ("*/seed-*/checkpoints/step-3", "*/seed-*.json"):
        process, known = command(tmp_path, out), {*glob(f"{out}/{pattern}")}
        while {*glob(f"{out}/{pattern}")} <= known and process.poll() is None:
            time.sleep(0.005)
        if which == "SIGINT":
            with suppress(ProcessLookupError):  # of a sweep that has just ended
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            process.send_signal(getattr(signal, which))
        _, err = process.communicate(timeout=300)
        n_stopped += process.returncode != 0
        if process.returncode == 130:
            assert "the same command continues" in err and "the table so far" in err
    assert n_stopped
    while True:  # the sweep that was killed holds its lock until its process is gone
        process = command(tmp_path, out)
        result, err = process.communicate(timeout=300)
        if process.returncode == 0 or "is being trained" not in err:
            break
    assert "failed" not in err
    assert process.returncode == 0, err
    values = {row["variant"]: row["values"] for row in json.loads(result)["rows"]}
    assert values == {name: {str(k): v for k, v in of.items()} for name, of in table.values.items()}


def test_compare_shows_runs_that_differ_in_the_seed_as_one_row(made: tuple[Run, Path, SweepTable]) -> None:
    _, folder, table = made
    runs = sorted(folder.glob("*/seed-*/"))
    rows = api.compare([*runs, runs[0]], "bits_per_byte")
    assert [row.n_seeds for row in rows] == [2, 2, 1], "the same run, given twice, is not another seed"
    for row, known in zip(rows, table.rows(), strict=False):
        assert row.name == f"{known['variant']}, 2 seeds"
        assert (row.score, row.score_error) == pytest.approx((known["mean"], known["error"]))
    assert str(rows).count(" ± ") == 2, "a score of several seeds has its standard error"


def test_a_run_that_fails_is_one_row_with_its_sentence(tmp_path: Path) -> None:
    said: list[str] = []
    table = glassformer.sweep(
        short_run(tmp_path, clip_norm=0.0),
        {"learning_rate": [0.001, 1e30]},
        seeds=2,
        out=tmp_path / "out",
        jobs=1,
        report=said.append,
    )
    assert len(table.values["learning_rate=0.001"]) == 2 and not table.values["learning_rate=1e+30"]
    assert "the loss is" in table.errors["learning_rate=1e+30"]
    assert table.rows()[1]["verdict"].startswith("failed: seed ") and any(" failed: the loss" in line for line in said)


def test_a_worker_that_is_killed_fails_its_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that kills its process is a row with a sentence, and the next run has a new process."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import os, signal\n"
        "from glassformer.apps.sweep import worker\n"
        "do = worker.do\n"
        "def killed(job):\n"
        "    if 'learning_rate=0.01' in job['folder']:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return do(job)\n"
        "worker.do = killed\n"
        "worker.main()\n"
    )
    monkeypatch.setattr("glassformer.apps.sweep.runner.WORKER", [sys.executable, str(program)])
    table = glassformer.sweep(short_run(tmp_path), RATES, seeds=2, out=tmp_path / "out", jobs=1)
    assert len(table.values["learning_rate=0.001"]) == 2
    assert "signal 9, perhaps for lack of memory" in table.errors["learning_rate=0.01"]


def test_a_stale_owner_and_an_empty_folder_with_a_lock_do_not_stop_a_sweep(
    made: tuple[Run, Path, SweepTable], tmp_path: Path
) -> None:
    """A process that was killed leaves the file of its lock, also on a machine with another name."""
    run, folder, table = made
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").touch()
    shutil.copytree(folder, tmp_path / "other")
    one = tmp_path / "other" / "0-learning_rate=0.001"
    (one / "seed-0.json").unlink()
    shutil.rmtree(one / "seed-0")
    (one / "seed-0").mkdir()
    (one / "seed-0" / ".lock").touch()
    (one / "seed-0" / ".owner.json").write_text('{"pid": 1, "host": "elsewhere", "since": "2020-01-01 00:00:00"}')
    again = glassformer.sweep(run, RATES, seeds=2, out=tmp_path / "other", jobs=1)
    assert again.values == table.values
    glassformer.sweep(run, RATES, seeds=1, out=tmp_path / "out", budget="2 steps", jobs=1)


def test_an_error_while_the_result_is_shown_stops_all_processes(tmp_path: Path) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        glassformer.sweep(short_run(tmp_path), RATES, seeds=3, out=tmp_path / "out", jobs=1, report=broken)
    done = [*(tmp_path / "out").glob("*/seed-*.json")]
    time.sleep(3)
    assert done == [*(tmp_path / "out").glob("*/seed-*.json")] and len(done) < 6


def test_the_mean_of_several_steps_is_measured_by_itself(tmp_path: Path) -> None:
    run = short_run(tmp_path, select="average", checkpoint_every=2, keep_checkpoints=3)
    table = glassformer.sweep(run, RATES, seeds=1, out=tmp_path / "out", jobs=1)
    for number, (name, of_seeds) in enumerate(table.values.items()):
        model = api.load(tmp_path / "out" / f"{number}-{name}" / "seed-0")
        assert of_seeds[0] == model.evaluate(loss_only=True).bits_per_byte
        assert of_seeds[0] != table.curves[name][0][-1][1]


def test_an_undefined_score_is_a_row_with_its_sentence() -> None:
    table = SweepTable("bleu", "a", {"a": {}, "b": {}})
    assert table.add("a", 0, {"value": None}) == " failed: bleu is undefined"
    assert table.rows()[0]["verdict"] == "failed: seed 0: bleu is undefined"
    assert table.rows()[1]["verdict"] == "not known: the baseline failed"


# The rule that adds seeds, on made-up values


def made_up(base: Run, n: int, **settings: Any) -> tuple[Sweep, SweepTable]:
    sweep = Sweep(base, {str(k): {"d_model": k} for k in range(n)}, "loss", **settings)
    return sweep, SweepTable("loss", "0", {label: {} for label in sweep.variants})


@pytest.mark.parametrize("settings", [{"until_decided": 8}, {"stop_early": True, "seeds": 6}])
@pytest.mark.parametrize("n_variants", [1, 8])
def test_looking_again_after_each_seed_makes_no_more_mistakes(settings: dict[str, Any], n_variants: int) -> None:
    draw, wrong, n_tables = random.Random(6), 0, 1000 if n_variants == 1 else 300

    for _ in range(n_tables):
        sweep, table = made_up(Run(), n_variants + 1, **settings)

        def train(wanted: list[tuple[str, int]], table: SweepTable = table) -> None:
            for label, seed in wanted:
                table.values[label][seed] = draw.gauss(2, 0.05)

        def begin(wanted: list[tuple[str, int]], n: int = n_variants + 1) -> dict[str, dict[int, float]]:
            return {str(label): {seed: draw.gauss(3, 0.05) for seed in range(6)} for label in range(n)}

        judge(sweep, table, train, begin)
        assert table.verdicts.keys() == sweep.variants.keys() - {"0"}
        wrong += any(verdict.word != "not known" for verdict in table.verdicts.values())
    assert wrong / n_tables <= LEVEL + 3 * (LEVEL * (1 - LEVEL) / n_tables) ** 0.5


def test_a_variant_that_is_decided_gets_no_more_seeds() -> None:
    def n_seeds(**settings: Any) -> dict[str, int]:
        draw, (sweep, table) = random.Random(7), made_up(Run(), 4, **settings)
        means = {"0": 2.0, "1": 1.0, "2": 3.0, "3": 2.0}  # the baseline, a better one, a worse one, the same

        def train(wanted: list[tuple[str, int]]) -> None:
            for label, seed in wanted:
                table.values[label][seed] = draw.gauss(means[label], 0.01)

        def begin(wanted: list[tuple[str, int]]) -> dict[str, dict[int, float]]:
            assert wanted == [(label, seed) for seed in range(5) for label in means]
            return {label: {seed: mean + draw.gauss(1, 0.01) for seed in range(5)} for label, mean in means.items()}

        judge(sweep, table, train, begin)
        assert [table.verdicts[label].word for label in "123"] == ["better", "worse", "not known"]
        return {label: len(of_seeds) for label, of_seeds in table.values.items()}

    assert n_seeds(seeds=3) == {"0": 3, "1": 3, "2": 3, "3": 3}
    assert n_seeds(seeds=3, until_decided=6) == {"0": 6, "1": 3, "2": 3, "3": 6}
    assert n_seeds(seeds=5, stop_early=True) == {"0": 5, "1": 5, "2": 0, "3": 5}


def test_a_variant_that_is_worse_in_the_middle_is_not_trained_further(tmp_path: Path) -> None:
    """The others continue to the bits of whole runs."""
    run = short_run(tmp_path, max_steps=6, eval_every=2)
    vary = {"learning_rate": [0.03, 1e-7, 0.04]}
    whole = glassformer.sweep(run, vary, seeds=4, out=tmp_path / "whole", jobs=2)
    early = glassformer.sweep(run, vary, seeds=4, out=tmp_path / "early", jobs=2, stop_early=True)
    slow = "learning_rate=1e-07"
    assert str(early.verdicts[slow]) == "worse, stopped in the middle" and not early.values[slow]
    for label in {*early.values} - {slow}:
        assert early.values[label] == whole.values[label], "a pause changes no bit"
    [halted] = {lines[-1]["step"] for lines in map(read_lines, tmp_path.glob("early/1-*/seed-*/metrics.jsonl"))}
    assert halted == 4, "the first evaluation in the second half"
    again = glassformer.sweep(run, vary, seeds=4, out=tmp_path / "early", jobs=1, stop_early=True)
    assert again.rows() == early.rows()
    # Other numbers of steps are judged at the same part of their schedules
    planned = Sweep(run, {"a": {"max_steps": 489}, "b": {"max_steps": 1954}}, "loss", stop_early=True)
    for label in "ab":
        halved, middle = planned.halved(planned.run(label, 0))
        assert middle % halved.train.eval_every == 0 and abs(middle / halved.train.max_steps - 0.5) < 0.01


def test_a_metric_that_the_training_does_not_measure_cannot_stop_early(tmp_path: Path) -> None:
    run = pair_run(tmp_path, max_steps=4, eval_every=2)
    table = glassformer.sweep(
        run, {"learning_rate": [0.001, 0.01]}, seeds=2, metric="bleu", out=tmp_path / "out", stop_early=True, jobs=1
    )
    assert set(table.errors) == set(table.values)
    assert "the training does not measure bleu" in table.errors["learning_rate=0.01"]


# Budgets, variants, metrics and files


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("500", "500 steps"),
        ("500 steps", "500 steps"),
        ("2e6 tokens", "2e+06 tokens"),
        ("1,000t", "1,000 tokens"),
        ("1.5 s", None),
    ],
)
def test_budgets_are_read(text: str, budget: str | None) -> None:
    assert str(Budget.parse(text)) == (budget or "1.5 steps")


@pytest.mark.parametrize("text", ["", "many", "-5", "0 steps", "5 epochs", "1..2", "steps", "1e999"])
def test_a_wrong_budget_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="budget: expected a number of steps, tokens, seconds"):
        Budget.parse(text)


def test_a_budget_of_tokens_is_the_same_for_other_batches(tmp_path: Path) -> None:
    run = short_run(tmp_path)  # rows of 32 tokens
    assert Budget(9600, "tokens").steps(run, 0) == 100
    changed = replace(run, train=replace(run.train, batch_size=6, grad_accumulation=2))
    assert Budget(9600, "tokens").steps(changed, 0) == 25
    pairs = pair_run(tmp_path)
    assert Budget(10 * pairs.data.batch_tokens, "tokens").steps(pairs, 0) == 10  # type: ignore[union-attr]


def test_a_budget_of_seconds_is_measured_once_and_kept(tmp_path: Path) -> None:
    run, out = short_run(tmp_path), tmp_path / "out"
    glassformer.sweep(run, RATES, seeds=1, budget="0.2 seconds", out=out, jobs=1)
    steps = json.loads((out / plan.NAME).read_text())["steps"]
    assert steps.keys() == {"learning_rate=0.001", "learning_rate=0.01"}
    lines = read_lines(out / "0-learning_rate=0.001" / "seed-0" / "metrics.jsonl")
    assert lines[-1]["step"] == steps["learning_rate=0.001"]
    assert sorted(path.name for path in (out / "0-learning_rate=0.001").iterdir()) == ["seed-0", "seed-0.json"]
    glassformer.sweep(run, RATES, seeds=1, budget="0.2 seconds", out=out, jobs=1)
    assert json.loads((out / plan.NAME).read_text())["steps"] == steps


def test_variants_are_all_combinations_and_against_names_the_baseline() -> None:
    vary = {"d_model": ["64", "96"], "dropout": ["0.0", "0.1"]}
    assert next(iter(varied(vary))) == "d_model=64 dropout=0.0" and len(varied(vary)) == 4
    assert next(iter(varied(vary, "dropout=0.1 d_model=96"))) == "d_model=96 dropout=0.1"
    for wrong, message in (("d_model=64", "2 variants are"), ("d_model=65", "no variant and no folder is")):
        with pytest.raises(UserError, match=message):
            varied(vary, wrong)
    assert varied({}, alone="mine") == {"mine": {}}
    with pytest.raises(UserError, match="no variant: give one value of each key"):
        varied({"d_model": []})


def test_the_base_alone_is_a_baseline_for_a_later_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idea in the code is judged against the folder of a sweep that was made before the code changed."""
    run, before = short_run(tmp_path), tmp_path / "before"
    alone = glassformer.sweep(run, seeds=3, out=before, jobs=2)
    assert [row["verdict"] for row in alone.rows()] == ["baseline"] and len(alone.values[run.name]) == 3
    # The same code: no difference
    same = glassformer.sweep(run, seeds=2, out=tmp_path / "same", against=str(before), jobs=1)
    baseline = f"earlier {before}"
    assert same.baseline == baseline and same.values[run.name] == same.values[baseline]
    assert same.verdicts[run.name].word == "not known"
    assert len(list(tmp_path.glob("same/*/seed-*/"))) == 2, "the baseline is not trained again"
    # "Changed code": the earlier values are worse, by more than the seeds differ
    for path in before.glob("0-*/seed-*.json"):
        found = files.read_json(path)
        files.write_json(path, found | {"value": found["value"] + 1.0 + 0.001 * int(path.stem[-1])})
    better = glassformer.sweep(run, seeds=3, out=tmp_path / "better", against=str(before), jobs=2)
    assert better.verdicts[run.name].word == "better"
    # What cannot be compared is one sentence
    for wrong, message in (
        ({"metric": "loss"}, "has another metric: bits_per_byte, not loss"),
        ({"budget": "7 steps"}, "has another budget: none, not 7 steps"),
        ({"max_steps": 7}, "has another number of steps: 6, not 7"),
        ({"valid_fraction": 0.3}, "has another validation data"),
        ({"seeds": 4}, "lacks seed 3"),
    ):
        with pytest.raises(UserError, match=message):
            glassformer.sweep(run, out=tmp_path / "other", against=str(before), **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is the folder of this sweep: give another --out"):
        glassformer.sweep(run, out=before, against=str(before))
    with pytest.raises(UserError, match="is no folder of a sweep"):
        glassformer.sweep(run, out=tmp_path / "other", against=str(tmp_path))
    next(before.glob("0-*/seed-0.json")).write_text("{}")
    with pytest.raises(UserError, match="is no folder of a sweep, or its files are damaged"):
        glassformer.sweep(run, out=tmp_path / "other", against=str(before))


def test_the_metric_suits_the_data(tmp_path: Path) -> None:
    text, pairs, labels = short_run(tmp_path), pair_run(tmp_path), label_run(tmp_path)
    assert chosen_metric(text, {}) == "bits_per_byte" and chosen_metric(pairs, {}) == "loss"
    watching = replace(labels, train=replace(labels.train, early_stopping=EarlyStopping("macro_f1")))
    assert chosen_metric(watching, {}) == "macro_f1"
    for metric, message in (("blue", "metric: did you mean bleu"), ("bleu", "metric: expected one of bits_per_byte")):
        with pytest.raises(UserError, match=message):
            chosen_metric(text, {}, metric)


def test_losses_per_token_of_two_tokenizers_are_not_compared(tmp_path: Path) -> None:
    changes = {"a": {"vocab_size": 270}, "b": {"vocab_size": 290}}
    with pytest.raises(UserError, match=r"loss is per token, .* give another --metric, such as"):
        chosen_metric(pair_run(tmp_path), {"a": {"tokenizer.vocab_size": 270}, "b": {"tokenizer.vocab_size": 290}})
    assert chosen_metric(short_run(tmp_path), changes) == "bits_per_byte"


def test_a_score_that_the_training_does_not_measure_is_measured_after_it(tmp_path: Path) -> None:
    run = pair_run(tmp_path, max_steps=2, eval_every=2)
    table = glassformer.sweep(run, {"learning_rate": [0.001, 0.002]}, seeds=1, metric="chrf", out=tmp_path / "out")
    for number, (name, of_seeds) in enumerate(table.values.items()):
        assert of_seeds[0] == api.load(tmp_path / "out" / f"{number}-{name}" / "seed-0").scores()["chrf"]


def test_a_toml_file_may_have_a_table_sweep(tmp_path: Path) -> None:
    path = tmp_path / "base.toml"
    path.write_text("[sweep]\nvary = { learning_rate = [0.1, 0.2] }\nseeds = 4\n[train]\nmax_steps = 7\n")
    run, settings = split_table(path)
    assert run.train.max_steps == 7 and settings == {"vary": {"learning_rate": [0.1, 0.2]}, "seeds": 4}
    path.write_text("[sweep]\nseed = 4\n")
    with pytest.raises(UserError, match=r"unknown key sweep.seed .*seeds"):
        split_table(path)


def test_arguments_replace_the_table_sweep_of_a_file(made: tuple[Run, Path, SweepTable], tmp_path: Path) -> None:
    run, folder, table = made
    path, text = tmp_path / "base.toml", plan.as_text(run)
    path.write_text(text + "\n[sweep]\nvary = { learning_rate = [0.001, 0.01] }\nseeds = 3\n")
    shutil.copytree(folder, tmp_path / "out")
    again = glassformer.sweep(path, seeds=2, out=tmp_path / "out")
    assert again.to_dict() == table.to_dict(), "nothing was trained"
    path.write_text(text + "\n[sweep]\nseeds = 0\n")
    with pytest.raises(UserError, match="seeds: expected a whole number from 1"):
        glassformer.sweep(path, out=tmp_path / "other")


def test_a_run_on_changed_data_is_not_compared(tmp_path: Path) -> None:
    run = short_run(tmp_path)
    alone = glassformer.sweep(run, seeds=1, out=tmp_path / "alone", jobs=1)
    assert alone.values[run.name]
    path = Path(str(run.data.path))
    path.write_text(path.read_text("utf-8") + "one more line\n", "utf-8")
    with pytest.raises(UserError, match=r"the data of .* seed 1 is not that of .* seed 0: restore the data"):
        glassformer.sweep(run, seeds=2, out=tmp_path / "alone", jobs=1)
    with pytest.raises(UserError, match=r"the data of .* seed 0 is not that of earlier .*alone: restore the data"):
        glassformer.sweep(run, seeds=1, out=tmp_path / "after", against=str(tmp_path / "alone"), jobs=1)


def test_wrong_numbers_and_keys_are_refused_before_the_first_run(tmp_path: Path) -> None:
    run, out = short_run(tmp_path), tmp_path / "out"
    for settings, message in (
        ({"seeds": 0}, "seeds: expected a whole number from 1"),
        ({"seeds": 2.5}, "seeds: expected a whole number"),
        ({"until_decided": 3}, "until_decided: expected more than the 3 seeds"),
        ({"jobs": -1}, "jobs: expected a whole number"),
    ):
        with pytest.raises(UserError, match=message):
            glassformer.sweep(run, RATES, out=out, **settings)  # type: ignore[arg-type]
    for vary, message in (
        ({"train.seed": [1, 2]}, "are the same run: leave one out"),
        ({"data.valid_fraction": [0.1, 0.2]}, "have different validation data"),
        ({"train.max_time": [0, 5]}, "train.max_time would stop the runs"),
        ([1], "vary: expected a table of keys"),
        ({"d_model": "64"}, "vary: expected a table of keys"),
    ):
        with pytest.raises(UserError, match=message):
            glassformer.sweep(run, vary, out=out)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="are the same run"):
        glassformer.sweep(run, {"max_steps": [1, 2]}, budget="3 steps", out=out)
    with pytest.raises(UserError, match="budget: expected a text, got 300"):
        glassformer.sweep(run, RATES, budget=300, out=out)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="stop_early: expected true or false"):
        glassformer.sweep(run, RATES, stop_early="no", out=out)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown key learning_rat"):
        glassformer.sweep(run, {"learning_rat": [1, 2]}, out=out)
    with pytest.raises(UserError, match=r"model.d_model 17 is not divisible"):
        glassformer.sweep(run, {"model.d_model": [16, 17]}, out=out)
    assert not out.exists()


def test_gpus_are_those_that_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "GPU 0: A (UUID: x)"\necho "GPU 1: B (UUID: y)"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert visible_gpus() == ["3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


def test_one_worker_per_gpu_sees_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    sweep = Sweep(replace(short_run(tmp_path, device="auto")), varied(RATES), "loss")
    runner = Runner(sweep, tmp_path / "out", lambda text: None)
    runner.facts = {"threads": 1}
    assert runner.n_jobs == 2 and runner._settings(1)["CUDA_VISIBLE_DEVICES"] == "5"


def test_decimals_show_two_digits_of_the_error() -> None:
    assert [decimals(error) for error in (0.00123, 0.5, 12.0, 0.0)] == [4, 2, 0, 4]
