"""Every benchmark runs, with tiny sizes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark_files import load
from glassformer.apps.cli.main import run
from glassformer.nn.kernels import processor

GPT = {"n_layers": 1, "n_heads": 2, "d_model": 16, "vocab_size": 50, "context": 16, "batch": 2}
PAIR = {"n_layers": 1, "n_heads": 2, "d_model": 16, "d_ff": 32, "vocab_size": 50}
SMALL = {"n_layers": 1, "d_model": 16, "n_heads": 2, "vocab_size": 50}
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
    "decode_gpt2_exported:llama_cpp": {"threads": 1},
    "decode_gpt2_exported:ctranslate2_generator": {},
    "decode_small:ours": {"sizes": SMALL, "n_new": 3},
    "decode_small:plain": {"sizes": SMALL, "n_new": 3},
    "decode_translation:ours": {"sizes": PAIR, "n_sentences": 2, "n_source": 3, "n_new": 4},
    "decode_translation:marian": {"sizes": PAIR, "n_sentences": 2, "n_source": 3, "n_new": 4},
    "decode_translation:plain": {"sizes": PAIR, "n_sentences": 2, "n_source": 3, "n_new": 4},
    "decode_ct2:translator": {},
    "text:encode": {"n_bytes": 20_000, "vocab_size": 300},
    "text:learn": {"n_bytes": 20_000, "vocab_size": 300},
    "start:command": {},
}
"""Arguments that replace those of the catalogue."""
PREPARED: dict[str, dict[str, Any]] = {
    "multi30k:prepared": {"vocab_size": 300, "batch_tokens": 64, "n_batches": 2},
    "decode_translation:exported": {"sizes": PAIR, "n_sentences": 2, "n_source": 3, "n_new": 4},
    "decode_gpt2_exported:exported": {"sizes": GPT | {"vocab_size": 300, "d_model": 32}, "n_prompt": 4, "n_new": 3},
    "start:trained": {},
}


def function(make: str) -> Callable[..., Any]:
    module, name = make.split(":")
    return getattr(load(module), name)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # x-transformers, at import
@pytest.mark.parametrize("name", ["train-shakespeare", "train-gpt2", "train-translation", "train-bert",
    "train-bahdanau", "multi30k", "decode-gpt2", "decode-small", "decode-translation", "decode-captions", "encode",
    "learn", "train-gpt2-on-gpu", "train-packed-on-gpu", "decode-gpt2-on-gpu"])  # fmt: skip
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
        differs = candidate.make.startswith("decode_gpt2_exported")
        if candidate.arguments.get("encoder") != "reference" and not differs:
            work.setdefault(candidate.setting, set()).add((task.amount, task.flops or task.bytes_read))
        assert not benchmark.share or task.flops or task.bytes_read, candidate.label
    assert all(len(amounts) == 1 for amounts in work.values()), work


def test_all_encoders_return_the_same_ids() -> None:
    text = load("text")
    arguments = {"scheme": "byte", "vocab_size": 300, "n_bytes": 20_000}
    own, other, reference = (
        text.encode(name, **arguments).call() for name in ("glassformer", "tokenizers", "reference")
    )
    assert own == other == text.encode("tiktoken", **arguments).call()
    assert own[: len(reference)] == reference and reference


def test_only_training_steps_of_glassformer_keep_freed_memory() -> None:
    catalogue = load("catalogue")
    for name, make in (catalogue.BENCHMARKS | catalogue.ON_GPU).items():
        for candidate in make().candidates:
            trains = name.startswith("train-") or name == "multi30k"
            assert candidate.keeps_memory == (trains and candidate.name == "glassformer"), candidate.label


def test_the_commands_of_start_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is trained in this process, the commands that are measured run in their own."""
    benchmark, worker = load("catalogue").start(), load("worker")
    make, _ = benchmark.prepare
    with monkeypatch.context() as patch:
        patch.setattr(load("start"), "_run", lambda words: run(words[3:]))
        function(make)(folder=str(tmp_path))
    help_, generate = benchmark.candidates[1:]
    for candidate in (help_, generate):
        task = function(candidate.make)(**{**candidate.arguments, "folder": str(tmp_path)})
        assert worker.seconds_of(task) > 0
        assert worker.peak_bytes(task.runs_programs) > 1 << 20


@pytest.mark.parametrize("gains", ["bf16", "onednn"])
def test_the_rate_of_bf16_is_measured_where_it_is_faster(gains: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "this", replace(processor.this, known=processor.FIXED[gains]))
    rates = load("rates")
    found = rates.measured("cpu", sizes=[32, 64], copied_bytes=1 << 16).found
    assert found.keys() == {"fp32", "copy"} | ({"bf16"} if gains == "bf16" else set()) and min(found.values()) > 0
    assert rates.machine("cpu").found == {"processor": str(processor.this), "has_bf16": gains == "bf16"}


@pytest.mark.parametrize(("seconds", "largest"), [(0.0, 256), (1.0, 1024), (10.0, 2048), (60.0, 4096)])
def test_the_sizes_of_products_fit_in_the_time(seconds: float, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor of 30 GFLOP/s; the first size is measured in any case."""
    rates, sizes = load("rates"), []
    monkeypatch.setattr(rates, "matmul_rate", lambda dtype, size, device: sizes.append(size) or 3e10)
    assert rates.best_rate(torch.float32, rates.SIZES["cpu"], torch.device("cpu"), seconds) == 3e10
    assert sizes == [size for size in rates.SIZES["cpu"] if size <= largest]


def test_every_benchmark_has_settings_for_a_processor_without_bf16() -> None:
    for name, make in load("catalogue").BENCHMARKS.items():
        assert any(candidate.precision != "bf16" for candidate in make().candidates), name
