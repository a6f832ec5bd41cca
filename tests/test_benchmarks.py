"""The models that the benchmarks compare have equal size and architecture; every benchmark runs, with tiny sizes."""

import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.config.presets import preset
from glassformer.config.train import TrainConfig
from glassformer.cost.activations import Kernels, activations
from glassformer.cost.flops import Shape
from glassformer.models.build import build_model

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
MODULES = {path.stem for path in BENCHMARKS.glob("*.py")}


@pytest.fixture(scope="module", autouse=True)
def path_of_benchmarks() -> Iterator[None]:
    """The files of the folder import each other by name."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in MODULES & sys.modules.keys():
        del sys.modules[name]


def load(name: str) -> ModuleType:
    module = importlib.import_module(name)
    assert Path(str(module.__file__)).parent == BENCHMARKS
    return module


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return load("gpt_peers")


def randomise(network: nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)


def test_plain_gpt_equals_gpt2(peers: ModuleType) -> None:
    """The hand-written GPT of the training benchmark gives transformers' logits for the same weights."""
    shape = peers.Decoder(n_layers=2, n_heads=4, d_model=32, vocab_size=50, context=16, batch=2)
    theirs = peers.transformers_gpt2(shape).eval()
    plain = peers.PlainGPT(shape, bias=True).eval()
    randomise(theirs)
    stored = theirs.model.state_dict()
    names = {"attn.c_attn": "c_attn", "attn.c_proj": "c_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}
    weights = {}
    for name, value in stored.items():
        own = name.removeprefix("transformer.")
        is_projection = any(old in own for old in names)
        for old, new in names.items():
            own = own.replace(old, new)
        weights[own] = value.T if is_projection and value.dim() == 2 else value
    plain.load_state_dict(weights)
    ids = torch.randint(50, (2, 16))
    torch.testing.assert_close(plain(ids), theirs(ids), atol=1e-4, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # x-transformers, at import
def test_all_peers_have_the_same_size(peers: ModuleType) -> None:
    """Numbers of parameters differ by less than 5 %, so that no model is faster because it is smaller."""
    shape = peers.Decoder(4, 4, 128, 65, 64, 12)
    sizes = {name: sum(p.numel() for p in make(shape).parameters()) for name, make in peers.MODELS.items()}
    assert max(sizes.values()) < 1.05 * min(sizes.values()), sizes
    ids = torch.randint(shape.vocab_size, (2, shape.context))
    for name, make in peers.MODELS.items():
        assert make(shape)(ids).shape == (2, shape.context, shape.vocab_size), name


def test_translation_peers_have_the_same_size_and_shape() -> None:
    """Trained parameters of the encoder-decoders differ by less than 1 %."""
    peers = load("translation_peers")
    shape = peers.EncoderDecoder(2, 4, 32, 64, 50, batch=3, n_source=7, n_target=5)
    inputs, labels = shape.inputs(torch.device("cpu"))
    sizes = {}
    for name, make in peers.MODELS.items():
        network = make(shape)
        assert network(*inputs).shape == (*labels.shape, shape.vocab_size), name
        sizes[name] = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert max(sizes.values()) < 1.01 * min(sizes.values()), sizes


def test_the_translation_shape_equals_marian() -> None:
    """Both have the same number of trained parameters."""
    peers = load("translation_peers")
    shape = peers.EncoderDecoder(1, 2, 16, 32, 50)
    own = sum(p.numel() for p in peers.ours(shape).parameters())
    theirs = sum(p.numel() for p in peers.marian(shape).parameters() if p.requires_grad)
    assert own == theirs


def test_the_plan_equals_the_memory_that_autograd_saves() -> None:
    """Run the measurement of the benchmark on a small model."""
    plan = load("plan")
    config = replace(preset("modern-mini"), vocab_size=50)
    network, ids = build_model(config), torch.randint(50, (2, 9))
    kept = activations(config, Shape(2, 8), Kernels(on_cpu=True))
    divisor = 4
    assert plan.kept_bytes(network, ids, half=False) == kept.layers + kept.logits // 2 + divisor
    assert plan.step_seconds(network, ids, False, TrainConfig(), n_steps=1) > 0


def test_plain_bahdanau_equals_glassformer() -> None:
    """The model that is written by hand has the parameters of glassformer's, and the same logits for equal weights."""
    peers = load("bahdanau_peers")
    shape = peers.Recurrent(8, 6, 10, 50, batch=3, n_source=7, n_target=5)
    own, plain = peers.ours(shape), peers.PlainBahdanau(shape)
    randomise(own)
    weights = dict(own.named_parameters())
    vector = weights.pop("decoder.cross_attn.vector")
    names = {
        "encoder.tokens": "table",
        "encoder.cells": "encoder",
        "bridge.hidden.0": "bridge",
        "decoder.cells": "cell",
        "decoder.deep_output.state_proj": "of_state",
        "decoder.deep_output.token_proj": "of_token",
        "decoder.deep_output.context_proj": "of_context",
        "decoder.cross_attn.q_proj": "query",
        "decoder.cross_attn.k_proj": "key",
        "output.proj": "head",
    }
    renamed = {"score.weight": vector[None]}
    for name, value in weights.items():
        module, _, last = name.rpartition(".")
        is_cell = module == "decoder.cells"
        renamed[f"{names[module]}.{last.removesuffix('_l0') if is_cell else last}"] = value
    plain.load_state_dict(renamed)
    (source, target), _ = shape.inputs(torch.device("cpu"))
    torch.testing.assert_close(plain(source, target), own(target, source_ids=source), atol=1e-5, rtol=1e-5)


def test_both_berts_have_the_same_size_and_targets() -> None:
    """Every row of the batch has the same number of masked tokens, which are the targets of both models."""
    peers = load("bert_peers")
    shape = peers.Bert(1, 2, 16, 200, batch_size=2, n_tokens=8, n_masked=3)
    own, other = peers.ours(shape), peers.transformers_bert(shape)
    assert sum(p.numel() for p in own.parameters()) == sum(p.numel() for p in other.parameters())
    batch = shape.batch()
    scored = batch.labels != -100
    assert scored.sum(dim=1).tolist() == [3, 3] and batch.n_targets == 6
    assert (batch.token_ids[scored] == peers.MASK_ID).all()
    assert own(**batch.model_inputs()).shape == (6, 200) and other(batch.token_ids).shape == (2, 8, 200)


def test_padding_does_not_change_the_logits_of_the_translation_peers() -> None:
    """So the batches of Multi30k mean the same for all models."""
    peers = load("translation_peers")
    shape = peers.EncoderDecoder(1, 2, 16, 32, 50, batch=2, n_source=7, n_target=5)
    (source, target), _ = shape.inputs(torch.device("cpu"))
    changed, real = source.clone(), torch.ones_like(source, dtype=torch.bool)
    real[:, 5:] = False
    changed[:, 5:] = 3
    for name, make in peers.MODELS.items():
        network = make(shape).eval()
        both = [network(ids, target, real, torch.ones_like(target, dtype=torch.bool)) for ids in (source, changed)]
        torch.testing.assert_close(*both, msg=name)


# Every benchmark, with tiny sizes

GPT = {"n_layers": 1, "n_heads": 2, "d_model": 16, "vocab_size": 50, "context": 16, "batch": 2}
PAIR = {"n_layers": 1, "n_heads": 2, "d_model": 16, "d_ff": 32, "vocab_size": 50}
SIZES: dict[str, dict[str, Any]] = {
    "train:gpt": {"sizes": GPT, "compiled": False, "calls": 1, "device": "cpu"},
    "train:packed": {"sizes": GPT, "mean_length": 3, "compiled": False, "calls": 1, "device": "cpu"},
    "train:translation": {"sizes": PAIR | {"batch": 2, "n_source": 5, "n_target": 4}},
    "train:bert": {
        "sizes": {"n_layers": 1, "n_heads": 2, "d_model": 16, "vocab_size": 200, "n_tokens": 8, "n_masked": 2}
    },
    "train:bahdanau": {"sizes": {"d_embedding": 8, "d_encoder": 6, "d_decoder": 10, "vocab_size": 50, "batch": 3}},
    "multi30k:train": {"sizes": PAIR | {"vocab_size": 300}},
    "decode_gpt2:ours": {"sizes": GPT, "n_prompt": 4, "n_new": 3, "device": "cpu"},
    "decode_gpt2:transformers_gpt2": {"sizes": GPT, "n_prompt": 4, "n_new": 3, "device": "cpu"},
    "decode_translation:ours": {"sizes": PAIR, "n_sentences": 2, "n_source": 3, "n_new": 4},
    "decode_translation:marian": {"sizes": PAIR, "n_sentences": 2, "n_source": 3, "n_new": 4},
    "decode_ct2:translator": {},
    "text:encode": {"n_bytes": 20_000, "vocab_size": 300},
    "text:learn": {"n_bytes": 20_000, "vocab_size": 300},
    "start:command": {},
}
"""Arguments that replace those of the catalogue."""
PREPARED: dict[str, dict[str, Any]] = {
    "multi30k:prepared": {"vocab_size": 300, "batch_tokens": 64, "n_batches": 2},
    "decode_translation:exported": {"sizes": PAIR, "n_sentences": 2, "n_source": 3, "n_new": 4},
    "start:trained": {},
}


def function(make: str) -> Callable[..., Any]:
    module, name = make.split(":")
    return getattr(load(module), name)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # x-transformers, at import
@pytest.mark.parametrize("name", ["train-shakespeare", "train-gpt2", "train-translation", "train-bert",
    "train-bahdanau", "multi30k", "decode-gpt2", "decode-translation", "encode", "learn", "train-gpt2-on-gpu",
    "train-packed-on-gpu", "decode-gpt2-on-gpu"])  # fmt: skip
def test_every_candidate_runs(name: str, tmp_path: Path) -> None:
    """Each candidate of the catalogue runs one round, and the candidates of a setting do the same work."""
    catalogue, worker = load("catalogue"), load("worker")
    benchmark = (catalogue.BENCHMARKS | catalogue.ON_GPU)[name]()
    if benchmark.prepare is not None:
        make, arguments = benchmark.prepare
        data = {"data": str(tmp_path)} if benchmark.needs_data else {}
        for language in ("de", "en"):
            lines = (f"{language} {number} the lazy dog{' jumps' * (number % 5)}" for number in range(60))
            (tmp_path / f"train.{language}").write_text("\n".join(lines) + "\n", "utf-8")
        function(make)(folder=str(tmp_path), **arguments | PREPARED[make] | data)
    work: dict[str, set[tuple[float, float]]] = {}
    done = set()
    for candidate in benchmark.candidates:
        arguments = {**candidate.arguments, **SIZES[candidate.make]}
        arguments |= {"folder": str(tmp_path)} if "folder" in arguments else {}
        if (key := (candidate.make, repr(arguments))) in done:
            continue  # a setting without a tiny variant, such as compiled
        done.add(key)
        task = function(candidate.make)(**arguments)
        assert worker.seconds_of(task) > 0, candidate.label
        assert task.amount > 0
        if candidate.arguments.get("encoder") != "reference" and "int8" not in candidate.name:
            work.setdefault(candidate.setting, set()).add((task.amount, task.flops or task.bytes_read))
        assert not benchmark.share or task.flops or task.bytes_read, candidate.label
    assert all(len(amounts) == 1 for amounts in work.values()), work


def test_all_encoders_return_the_same_ids() -> None:
    text = load("text")
    arguments = {"scheme": "byte", "vocab_size": 300, "n_bytes": 20_000}
    own, other, reference = (
        text.encode(name, **arguments).call() for name in ("glassformer", "tokenizers", "reference")
    )
    assert own == other and own[: len(reference)] == reference and reference


def test_only_training_steps_of_glassformer_keep_freed_memory() -> None:
    catalogue = load("catalogue")
    for name, make in (catalogue.BENCHMARKS | catalogue.ON_GPU).items():
        for candidate in make().candidates:
            trains = name.startswith("train-") or name == "multi30k"
            assert candidate.keeps_memory == (trains and candidate.name == "glassformer"), candidate.label


def test_the_commands_of_start_run(tmp_path: Path) -> None:
    benchmark, worker = load("catalogue").start(), load("worker")
    make, _ = benchmark.prepare
    function(make)(folder=str(tmp_path))
    help_, generate = benchmark.candidates[1:]
    for candidate in (help_, generate):
        task = function(candidate.make)(**{**candidate.arguments, "folder": str(tmp_path)})
        assert worker.seconds_of(task) > 0
        assert worker.peak_bytes(task.runs_programs) > 1 << 20


def test_the_rates_of_the_machine_are_positive() -> None:
    found = load("rates").measured("cpu", sizes=[32, 64], copied_bytes=1 << 16).found
    assert found.keys() == {"fp32", "bf16", "copy"} and min(found.values()) > 0


# Processes and turns


@pytest.fixture
def candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Candidates in a file of their own, which record their rounds."""
    (tmp_path / "recorded.py").write_text(
        "import os, sys\n"
        "from task import Task\n"
        "def make(name, path, fails_at=0):\n"
        "    rounds = []\n"
        "    def call():\n"
        "        print('text of a package')\n"
        "        rounds.append(name)\n"
        "        with open(path, 'a') as file:\n"
        "            file.write(name)\n"
        "        if len(rounds) == fails_at:\n"
        "            raise ValueError('first line\\nsecond line')\n"
        "        return 0.5\n"
        "    return Task(call, amount=2, measures=True)\n"
        "def seconds_in_block():\n"
        "    kept = lambda: float('glassformer.devices' in sys.modules)\n"
        "    return Task(kept, measures=True)\n"
        "def dies():\n"
        "    os._exit(3)\n"
        "def is_killed():\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    made = load("turns").Candidate
    path = str(tmp_path / "order")
    return [made(name, "recorded:make", {"name": name, "path": path}) for name in "abc"]


def test_candidates_rotate_places_in_processes_of_their_own(candidates: list[Any], tmp_path: Path) -> None:
    measured = load("turns").take_turns(candidates, rounds=3, warmups=1)
    assert (tmp_path / "order").read_text() == "cababcbcacab"  # the first round warms up
    for one in measured:
        assert one.seconds == [0.5, 0.5, 0.5] and one.facts["amount"] == 2 and not one.error
        assert one.peak_bytes > 1 << 20


def test_freed_memory_is_kept_for_the_candidates_that_name_it(candidates: list[Any]) -> None:
    """The other processes do not import glassformer for it."""
    turns = load("turns")
    both = [turns.Candidate("a", "recorded:seconds_in_block", keeps_memory=keeps) for keeps in (True, False)]
    measured = turns.take_turns(both, rounds=1, warmups=0)
    assert [one.seconds for one in measured] == [[1.0], [0.0]]


def test_a_candidate_that_fails_gives_one_line_and_the_others_continue(candidates: list[Any]) -> None:
    turns = load("turns")
    broken = replace(candidates[0], arguments={**candidates[0].arguments, "fails_at": 2})
    dead, killed = turns.Candidate("dead", "recorded:dies"), turns.Candidate("killed", "recorded:is_killed")
    unknown = turns.Candidate("unknown", "recorded:nothing")
    said: list[str] = []
    measured = turns.take_turns([broken, dead, killed, unknown, candidates[1]], rounds=3, warmups=0, log=said.append)
    assert said == [
        "a: ValueError: first line",
        "dead: the process ended with exit status 3: no text",
        "killed: the process was killed, perhaps because memory is full: no text",
        "unknown: AttributeError: module 'recorded' has no attribute 'nothing'",
    ]
    assert measured[4].seconds == [0.5, 0.5, 0.5]


def test_the_parent_imports_no_torch() -> None:
    """Its memory would count in the peak memory of every child."""
    code = "import sys, run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS).returncode == 0


# Results and the page


def result(**changes: Any) -> Any:
    results = load("results")

    def row(name: str, setting: str, seconds: list[float]) -> Any:
        return results.Row(name, setting, setting, seconds, {"amount": 10.0, "flops": 1e9}, 5_000_000)

    rows = [
        row("glassformer", "fp32", [2.0, 1.0, 4.0]),
        row("peer", "fp32", [3.0, 2.0, 4.0]),
        row("glassformer", "bf16", [1.0, 1.0, 1.0]),
        results.Row("peer", "bf16", "bf16", error="no bf16"),
    ]
    values = {
        "title": "A title",
        "work": "tokens",
        "share": "matrix products",
        "reference": "glassformer",
        "picks_best": True,
        "made": {"date": "2026-01-01", "processor": "2 cores"},
        "rates": {"fp32": 1e9, "bf16": 2e9, "copy": 1e9},
        "rows": rows,
    }
    return results.Result(**values | changes)


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


# On a GPU


class Clock:
    """A clock that a part moves forward."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def parts_of(gpu: ModuleType) -> list[Any]:
    return [gpu.Part(name, (), least, most) for name, least, most in (("a", 10, 50), ("b", 30, 60), ("c", 5, 9))]


def test_parts_on_a_gpu_share_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    """A part gets the rest of the time, at most its own; a part that needs more than the rest is skipped."""
    gpu, clock = load("gpu"), Clock()
    limits: list[tuple[str, float]] = []

    def launch(part: Any, limit: float) -> tuple[int | None, list[str]]:
        limits.append((part.name, limit))
        clock.now += {"a": 45, "c": 9}[part.name]
        return {"a": 0, "c": None}[part.name], [part.name]

    outcomes = gpu.run_all(parts_of(gpu), 70, launch, clock)
    assert limits == [("a", 50), ("c", 9)]
    assert [(one.name, one.state, one.seconds) for one in outcomes] == [
        ("a", "passed", 45),
        ("b", "skipped", 0),
        ("c", "stopped", 9),
    ]
    said = capsys.readouterr().out
    assert "b skipped: it needs 30 s, and 25 s are left" in said and "c stopped: it did not end within 9 s" in said


def test_the_parts_on_a_gpu_fit_in_the_time() -> None:
    gpu, catalogue = load("gpu"), load("catalogue")
    assert sum(part.most for part in gpu.PARTS) <= 60 * gpu.MINUTES
    names = {part.name for part in gpu.PARTS if "JSON" in part.words}
    assert names == set(catalogue.ON_GPU) and not names & set(catalogue.BENCHMARKS)
    for part in gpu.PARTS:
        assert part.words[0] == "-m" or (ROOT / part.words[0]).is_file()
        assert part.most - gpu.CLOSING_SECONDS > 0 or "SECONDS" not in part.words


def test_a_part_is_stopped_with_its_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu, path = load("gpu"), tmp_path / "child"
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(path)!r}, 'w').write(str(child.pid))\n"
        "print('a line')\n"
        "child.wait()\n"
    )
    status, lines = gpu.launch(gpu.Part("sleeps", ("-c", code), 0, 0), 2.0, tmp_path / "none")
    assert status is None and lines == ["a line"] and "a line" in capsys.readouterr().out
    child, deadline = Path(f"/proc/{int(path.read_text())}/stat"), time.monotonic() + 60
    while child.exists() and child.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline, "the process of the part still runs"
        time.sleep(0.01)
    words = ("-c", "import sys; print(*sys.argv[1:]); sys.exit(3)", "SECONDS", "JSON")
    assert gpu.launch(gpu.Part("fails", words, 0, 0), 70.0, Path("file")) == (3, ["40 file"])


def test_the_record_of_a_gpu_has_every_part_test_and_failure() -> None:
    gpu, results = load("gpu"), load("results")
    lines = [
        "[gw0] [ 33%] PASSED tests/gpu/test_a.py::test_one[gpt, packed] ",
        "[gw1] [ 66%] FAILED tests/gpu/test_a.py::test_two ",
        "FAILED tests/gpu/test_a.py::test_two - assert 1 == 2",
    ]
    outcomes = [
        gpu.Outcome("tests", "failed", 61.24, lines),
        gpu.Outcome("train", "passed", 5.0),
        gpu.Outcome("plan", "passed", 1.0, ["a", "b"]),
    ]
    rows = [{"error": ""}, {"error": "out of memory"}]
    record = gpu.report("a GPU", outcomes, {"train": {"rows": rows}})
    assert record == {
        "format": results.FORMAT,
        "gpu": "a GPU",
        "parts": [
            {"name": "tests", "state": "failed", "seconds": 61.2},
            {"name": "train", "state": "failed", "seconds": 5.0},
            {"name": "plan", "state": "passed", "seconds": 1.0},
        ],
        "tests": {
            "tests/gpu/test_a.py::test_one[gpt, packed]": "passed",
            "tests/gpu/test_a.py::test_two": "failed",
        },
        "benchmarks": {"train": {"rows": rows}},
        "plan": ["a", "b"],
    }
    assert gpu.summary(record)[1:3] == [["tests", "failed", "61", "1 passed, 1 failed"], ["train", "failed", "5", ""]]


def test_the_command_on_a_gpu_writes_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu, results = load("gpu"), load("results")

    def launch(part: Any, limit: float, path: Path) -> tuple[int | None, list[str]]:
        if part.name == "train-gpt2-on-gpu":
            results.write(path, {part.name: result(picks_best=False)})
        return 0, []

    monkeypatch.setattr(gpu, "require_gpu", lambda: "a GPU")
    monkeypatch.setattr(gpu, "launch", launch)
    path = tmp_path / "gpu.json"
    with pytest.raises(SystemExit) as ends:  # a candidate of `result` failed
        gpu.main(["--json", str(path), "--minutes", "4"])
    assert ends.value.code == 1
    assert list(results.read(path)) == ["train-gpt2-on-gpu"], "the file can be read like that of the other benchmarks"
    with pytest.raises(SystemExit) as ends:
        gpu.main(["--minutes", "0"])
    assert ends.value.code == 2


def test_without_a_gpu_the_command_ends_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"^make gpu needs a GPU with CUDA, and torch .* finds none$"):
        load("gpu").main([])


def test_no_round_begins_after_the_end_except_the_first(candidates: list[Any], tmp_path: Path) -> None:
    measured = load("turns").take_turns(candidates, rounds=3, warmups=1, end=0.0)
    assert [len(one.seconds) for one in measured] == [1, 1, 1]


def test_first_calls_of_a_round_do_not_count() -> None:
    task, worker, calls = load("task"), load("worker"), []

    def call() -> float:
        calls.append(1)
        return float(len(calls))

    assert worker.seconds_of(task.Task(call, calls=2, first_calls=1, measures=True)) == 2.5
