"""Steps and whole runs on a GPU: the losses of the CPU, resume, equal bits, skipped steps, memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from configs import RECURRENT, random_ids, random_model
from faults.test_numbers import BAD, all_finite, spoiled
from glassformer import api
from glassformer.config.presets import preset
from glassformer.config.schema import to_dict
from glassformer.config.train import AdamWConfig, MuonConfig, OptimizerConfig, ParallelConfig, TrainConfig
from glassformer.config.written import to_toml
from glassformer.cost.activations import Kernels, activations
from glassformer.cost.flops import Shape
from glassformer.cost.memory import training_memory
from glassformer.data.batching import Batch, Example
from glassformer.models.build import build_model, undrawn_model
from glassformer.nn.kernels import flex_attention
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.distillation import Distillation
from glassformer.store import checkpoint
from glassformer.store.model_directory import weights_of
from glassformer.training.distributed.process_group import Replicated, Sharded
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.host import Host
from glassformer.training.metrics_log import read_lines
from glassformer.training.optimizers.build import build_optimizer
from glassformer.training.speed import peak_flops
from glassformer.training.step import TrainStep
from runs import metrics, pair_run, step_of, tiny_run, write_text
from tolerances import NETWORK, about, assert_close
from training.test_compile import CASES, DROPOUTS, Case, batches, one_layer

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]

CPU = torch.device("cpu")


def step_on(
    network: Any,
    device: torch.device,
    objective: Any = None,
    ranks: Ranks | None = None,
    optimizer: OptimizerConfig | None = None,
    **how: Any,
) -> TrainStep:
    """Return a step in fp32, not compiled, whose results are read later on a GPU, unless `how` replaces this."""
    network.to(device)
    if isinstance(objective, Distillation):
        objective.teacher.to(device)  # type: ignore[attr-defined]
    made = build_optimizer(network, optimizer or AdamWConfig(learning_rate=1e-3))
    return step_of(network, made, objective, Host(device, ranks or Ranks()), **how)


def losses(step: TrainStep, made: list[Batch]) -> list[float]:
    """Train on each batch; return the losses in nats per target."""
    results = [step([batch], [7]) for batch in made]
    return [result.nats / result.n_targets for result in results]


@pytest.mark.parametrize("name", CASES)
def test_every_family_trains_in_bfloat16_as_on_the_cpu(name: str, device: torch.device) -> None:
    """Batches of several lengths, with and without padding, and no dropout, whose numbers depend on the device."""
    require_equal_training(CASES[name], device, compiled=False)


def require_equal_training(case: Case, device: torch.device, compiled: bool) -> None:
    config = replace(one_layer(case.config), **dict.fromkeys(DROPOUTS, 0.0))
    made, found = batches(case), []
    for place, how in ((CPU, {}), (device, {"precision": "bf16", "compile": compiled})):
        torch._dynamo.reset()
        step = step_on(random_model(config, seed=3, dtype=torch.float32), place, case.objective, **how)
        found.append(losses(step, made))
    assert found[1] == about(found[0], percent=3)


@pytest.mark.parametrize("name", ["bahdanau", "luong", "sutskever"])
def test_recurrent_models_train_as_on_the_cpu(name: str, device: torch.device) -> None:
    vocab = RECURRENT[name].vocab_size
    ids, source = random_ids(vocab, 3, 8), random_ids(RECURRENT[name].encoder_vocab_size, 3, 6, seed=2)
    made = 3 * [Batch(token_ids=ids[:, :-1], labels=ids[:, 1:], n_targets=21, source_ids=source)]
    own = losses(step_on(random_model(name, dtype=torch.float32), CPU), made)
    other = losses(step_on(random_model(name, dtype=torch.float32), device, precision="bf16"), made)
    assert other == about(own, percent=3)


@pytest.mark.parametrize("optimizer", [AdamWConfig(), MuonConfig()], ids=["adamw", "muon"])
def test_a_step_in_fp32_equals_that_of_the_cpu(optimizer: OptimizerConfig, device: torch.device) -> None:
    case, weights = CASES["llama, packed"], []
    for place in (CPU, device):
        network = random_model(case.config, seed=3, dtype=torch.float32)
        losses(step_on(network, place, optimizer=optimizer), batches(case))
        weights.append([p.detach().cpu() for p in network.parameters()])
    dtype = torch.float32 if isinstance(optimizer, AdamWConfig) else torch.bfloat16  # in which Muon orthogonalises
    terms = NETWORK if isinstance(optimizer, AdamWConfig) else 1
    for one, other in zip(*weights, strict=True):
        assert_close(one, other, magnitude=1, terms=terms, dtype=dtype)


@pytest.mark.parametrize("make", [tiny_run, pair_run], ids=["text", "pairs"])
def test_a_run_has_the_losses_of_the_cpu(make: Callable[..., Any], device: torch.device, tmp_path: Path) -> None:
    given = write_text(tmp_path) if make is tiny_run else tmp_path
    run = make(given, log_every=1, grad_accumulation=2)
    api.train(run, tmp_path / "cpu")
    there = {"device": str(device), "precision": "bf16"}
    api.train(replace(run, train=replace(run.train, **there)), tmp_path / "gpu")
    found = [[line["train/loss"] for line in metrics(tmp_path / f) if "train/loss" in line] for f in ("cpu", "gpu")]
    assert len(found[0]) == 20 and found[1] == about(found[0], percent=2)
    assert api.load(tmp_path / "gpu", device=str(device)).network.n_parameters() > 0


def test_a_trace_has_the_kernels_and_the_log_the_memory(gpu: torch.device, tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), device=str(gpu), precision="bf16", max_steps=8, profile_steps=2)
    api.train(run, tmp_path / "run")
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    lines = [line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "train/loss" in line]
    assert lines and all(line["peak_memory_bytes"] > 0 for line in lines)
    assert all(("mfu" in line) == (peak_flops(run.train, gpu) is not None) for line in lines)


DETERMINISTIC = """
import sys
from pathlib import Path
from glassformer import api
from glassformer.common.errors import Interrupted
from runs import remains, step_of, tiny_run, write_text

folder, device = Path(sys.argv[1]), sys.argv[2]
how = {"device": device, "precision": "bf16", "deterministic": True, "grad_accumulation": 2}
run = tiny_run(write_text(folder), **how)
api.train(run, folder / "whole")
try:
    api.train(tiny_run(folder / "text.txt", **how, max_time=1e-9), folder / "parts")
except Interrupted:
    api.resume(folder / "parts", flags={"train.max_time": "0"})
whole, parts = remains(folder / "whole"), remains(folder / "parts")
assert whole["tensors"] == parts["tensors"] and whole["metrics"] == parts["metrics"]
assert not api.replay(folder / "parts").differing
"""


def test_a_deterministic_run_resumes_with_equal_bits(device: torch.device, tmp_path: Path) -> None:
    """In a process of its own, because cuBLAS reads its setting once."""
    words = [sys.executable, "-c", DETERMINISTIC, str(tmp_path), str(device)]
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("optimizer", [AdamWConfig(), MuonConfig()], ids=["adamw", "muon"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_step_never_waits_for_the_gpu(optimizer: OptimizerConfig, compiled: bool, gpu: torch.device) -> None:
    """From pinned batches to the update, PyTorch raises an error where the program would wait."""
    case = CASES["llama, groups, windows"]
    network = random_model(case.config, seed=3, dtype=torch.float32)
    step = step_on(network, gpu, optimizer=optimizer, precision="bf16", compile=compiled)
    made = [batch.pinned() for batch in batches(case)]
    for batch in made:  # compiles, and allocates pinned memory
        step([batch], [1])
    assert step.defers
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = []
        for number, batch in enumerate(made):
            step.backward([batch, batch], [number, 7])
            results += step.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    results += step.flush()
    assert len(results) == len(made) and all(result.gradient_norm > 0 for result in results)


def test_a_bad_step_is_skipped(device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, on_nonfinite="skip", device=str(device))
    spoiled(monkeypatch, {3, 4}, BAD["gradient is nan"])
    api.train(run, tmp_path / "run")
    events = [line["step"] for line in metrics(tmp_path / "run") if "event" in line]
    assert events == [4, 5] and all_finite(tmp_path / "run")
    optimizer = load_file(checkpoint.path_of(tmp_path / "run", 20) / checkpoint.OPTIMIZER)
    assert {float(x) for name, x in optimizer.items() if name.endswith("/step")} == {18.0}


@pytest.mark.parametrize(("precision", "recomputed"), [("fp32", False), ("bf16", False), ("bf16", "half")])
def test_the_plan_predicts_the_peak_memory(precision: Any, recomputed: Any, gpu: torch.device) -> None:
    """Within a quarter: the plan counts neither the workspace of kernels nor the gaps between tensors."""
    config = replace(preset("gpt2"), vocab_size=16384)
    config = replace(config, decoder=replace(config.decoder, n_layers=4))  # type: ignore[type-var]
    shape, train = Shape(8, 1024), TrainConfig(precision=precision, activation_checkpointing=recomputed)
    kept = activations(config, shape, Kernels(half=precision == "bf16"), train.recompute_every)
    planned = training_memory(config, train, kept).total
    ids = torch.randint(config.vocab_size, (shape.n_rows, shape.n_tokens + 1))
    batch = Batch(token_ids=ids[:, :-1].contiguous(), labels=ids[:, 1:], n_targets=shape.n_rows * shape.n_tokens)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = step_on(build_model(config), gpu, precision=precision, activation_checkpointing=recomputed)
    for _ in range(3):
        step([batch])
    assert 0.75 < (torch.cuda.max_memory_allocated() - before) / planned < 1.25


@pytest.mark.parametrize(
    ("compiled", "has_one_shape"),
    [(False, True), (True, True), (True, False)],
    ids=["eager", "compiled", "compiled for several shapes"],
)
def test_packed_rows_use_flex_attention_and_compile_once(
    compiled: bool, has_one_shape: bool, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other documents compile nothing; losses equal those with the dense mask, within 1 % (bf16)."""
    from torch._dynamo.utils import counters

    config = replace(CASES["llama, packed"].config, d_model=64, max_len=1024)
    config = replace(config, decoder=replace(config.decoder, d_head=32, window_pattern=(100, 0)))  # type: ignore[type-var]
    rng, made = np.random.default_rng(0), []
    for _ in range(6):
        rows = [Example(rng.integers(19, size=601), np.sort(rng.integers(5, size=601))) for _ in range(3)]
        made.append(CausalObjective().collate(rows, rng))
    found = []
    for devices in ((), ("cuda",)):
        monkeypatch.setattr(flex_attention, "DEVICES", devices)
        torch._dynamo.reset()
        counters.clear()
        flex_attention._compiled_once.cache_clear()
        how: dict[str, Any] = {"precision": "bf16", "compile": compiled, "has_one_shape": has_one_shape}
        step = step_on(random_model(config, seed=3, dtype=torch.float32), gpu, **how)
        found.append(losses(step, made[:2]))
        n_graphs = counters["stats"]["unique_graphs"]
        found[-1] += losses(step, made[2:])
        assert counters["stats"]["unique_graphs"] == n_graphs == (1 if compiled else 4 if devices else 0)
        assert not counters["graph_break"]
    assert found[1] == about(found[0], percent=1)


# Several processes


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("precision", "optimizer"),
    [("fp32", AdamWConfig(learning_rate=1e-3)), ("bf16", AdamWConfig(learning_rate=1e-3)), ("fp32", MuonConfig())],
    ids=["fp32", "bf16", "muon"],
)
def test_a_process_group_of_one_gpu_equals_no_group(
    strategy: Any, precision: Any, optimizer: OptimizerConfig, device: torch.device, tmp_path: Path
) -> None:
    """NCCL with one process: wrapped by DDP, or sharded by FSDP2 into one part, whose weights are sent."""
    case, how = CASES["llama, packed"], {"precision": precision, "optimizer": optimizer}
    expected = losses(step_on(random_model(case.config, dtype=torch.float32), device, **how), batches(case))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        config = ParallelConfig(strategy)
        ranks = Replicated(config, device) if strategy == "ddp" else Sharded(config, device)
        network = random_model(case.config, dtype=torch.float32)
        if strategy == "fsdp":
            weights, network = weights_of(network), undrawn_model(case.config)
            ranks.distribute(network, TrainConfig(precision=precision))
            ranks.send_weights(weights, network)
        found = losses(step_on(network, device, ranks=ranks, **how), batches(case))
    finally:
        dist.destroy_process_group()
    percent = 0.5 if isinstance(optimizer, MuonConfig) else 0.01  # Muon rounds to bfloat16
    assert found == about(expected, percent=2 if precision == "bf16" else percent)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_gpus_together_equal_one(strategy: Any, gpu: torch.device, tmp_path: Path) -> None:
    """`torchrun` starts one process per GPU."""
    n = torch.cuda.device_count()
    if n < 2:
        pytest.skip("one GPU only")
    run = tiny_run(write_text(tmp_path), log_every=1, grad_accumulation=n, device="cuda")
    api.train(run, tmp_path / "one")
    (tmp_path / "run.toml").write_text(to_toml(to_dict(replace(run, parallel=ParallelConfig(strategy)))))
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n), "-m", "glassformer", "train"]
    words += [str(tmp_path / "run.toml"), "--out", str(tmp_path / "all")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [[line["train/loss"] for line in metrics(tmp_path / f) if "train/loss" in line] for f in ("one", "all")]
    assert len(found[0]) == 20 and found[1] == about(found[0], percent=0.01)


# Compiled, which takes longest, at the end


@pytest.mark.parametrize("name", CASES)
def test_every_family_trains_compiled_as_on_the_cpu(name: str, device: torch.device) -> None:
    require_equal_training(CASES[name], device, compiled=True)
