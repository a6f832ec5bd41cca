"""A compiled step is one graph for every family and all batch lengths, and gives the losses of an eager step."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from configs import BERT, CONFIGS, GPT, LLAMA, PAPER, random_model
from faults.children import done
from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.run import PackedRows, SpansConfig
from glassformer.config.train import ParallelConfig
from glassformer.config.transformer import (
    AlibiPositions,
    Experts,
    LearnedPositions,
    PositionHead,
    RelativePositions,
    SequenceHead,
    Stack,
    TransformerConfig,
)
from glassformer.cost.plan import least_seconds
from glassformer.data.batching import Batch, Example
from glassformer.models.transforms import add_lora
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.classification import ClassificationObjective, TaggingObjective
from glassformer.objectives.distillation import Distillation
from glassformer.objectives.loss import LossSums, Objective, token_cross_entropy
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.store.model_directory import read_run
from glassformer.tokenization.frames import Frame
from glassformer.training.distributed.process_group import Replicated
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.host import Host
from glassformer.training.step import TrainStep
from runs import Recording, metrics, pair_run, signal_at, step_of, text_run_of, tiny_run, write_text
from tolerances import NETWORK, assert_close, near

VOCAB = 19
SIZES = [(3, 7), (2, 9), (5, 4), (4, 8)]
"""Rows and tokens of a bucketed run's batches."""
DROPOUTS = dict.fromkeys(
    ("token_dropout", "embedding_dropout", "residual_dropout", "attention_dropout", "ff_dropout"), 0.1
)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Compile with a backend that runs the graph eagerly and refuses breaks; return a counter of graphs."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiler = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", compiler)
    return lambda: counters["stats"]["unique_graphs"]


class ScoredObjective(CausalObjective):
    """Logits at some positions only, as in masked language modelling."""

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        batch = super().collate(examples, rng)
        scored = torch.from_numpy(np.flatnonzero(rng.random(batch.labels.numel()) < 0.5))
        return replace(batch, loss_positions=scored, n_targets=len(scored))

    def loss(self, model: Any, batch: Batch) -> LossSums:
        return token_cross_entropy(
            model(**batch.model_inputs()), batch.labels.flatten()[batch.loss_positions], batch.n_targets
        )


@dataclass(frozen=True)
class Case:
    """A family and its objective."""

    config: TransformerConfig
    objective: Objective
    rows: Callable[[np.random.Generator, int, int, bool], list[Example]]
    """Make the examples of a batch: number of rows, largest length, equal lengths or not."""
    recompute: Literal["half"] | bool = False
    lora: bool = False


def plain(rng: np.random.Generator, n: int, longest: int, padded: bool) -> list[Example]:
    lengths = [longest, *(rng.integers(2, longest) if padded else longest for _ in range(n - 1))]
    return [Example(rng.integers(VOCAB, size=length + 1)) for length in lengths]


def packed(rng: np.random.Generator, n: int, longest: int, padded: bool) -> list[Example]:
    rows = plain(rng, n, longest, padded)
    return [replace(row, document_ids=np.arange(len(row.token_ids)) // 3) for row in rows]


def pairs(rng: np.random.Generator, n: int, longest: int, padded: bool) -> list[Example]:
    return [
        replace(target, source_ids=source.token_ids)
        for target, source in zip(plain(rng, n, longest, padded), plain(rng, n, longest + 2, not padded), strict=True)
    ]


def labelled(rng: np.random.Generator, n: int, longest: int, padded: bool) -> list[Example]:
    return [replace(row, label=float(rng.integers(3))) for row in plain(rng, n, longest, padded)]


def tagged(rng: np.random.Generator, n: int, longest: int, padded: bool) -> list[Example]:
    return [replace(row, labels=rng.integers(5, size=len(row.token_ids))) for row in plain(rng, n, longest, padded)]


CAUSAL, PAIRS = CausalObjective(), Seq2SeqObjective(1, Frame(after=(2,)), Frame(after=(2,)), label_smoothing=0.1)
TEACHER = random_model(GPT, seed=5, dtype=torch.float32).requires_grad_(False)
CASES: dict[str, Case] = {
    "alibi, low rank, with a teacher": Case(
        replace(GPT, positions=AlibiPositions()), Distillation(CAUSAL, TEACHER), plain, lora=True
    ),
    "gpt, dropout, recomputed": Case(replace(GPT, **DROPOUTS), CAUSAL, plain, recompute=True),
    "llama, groups, windows": Case(
        replace(LLAMA, decoder=replace(LLAMA.decoder, window_pattern=(3, 0))), CAUSAL, plain
    ),
    "bert, scored": Case(replace(BERT, n_token_types=0), ScoredObjective(), plain),
    "t5 bias, tags": Case(
        replace(BERT, positions=RelativePositions(8, 12), head=PositionHead(5)), TaggingObjective(), tagged
    ),
    "rotary encoder, classes": Case(
        replace(CONFIGS["bert_rotary_window"], head=SequenceHead(3, "mean")), ClassificationObjective(), labelled
    ),
    "paper, dropout": Case(replace(PAPER, **DROPOUTS), PAIRS, pairs),
    "t5, recomputed": Case(CONFIGS["t5"], PAIRS, pairs, recompute="half"),
    "bart, learned positions": Case(replace(CONFIGS["bart"], positions=LearnedPositions(2)), PAIRS, pairs),
}
PACKED = Case(LLAMA, CAUSAL, packed)


def one_layer(config: TransformerConfig) -> TransformerConfig:
    """Return the configuration with one layer per window, so that tests are fast."""

    def short(stack: Stack | None) -> Stack | None:
        return None if stack is None else replace(stack, n_layers=max(1, len(stack.window_pattern)))

    return replace(config, encoder=short(config.encoder), decoder=short(config.decoder))


def step_on(case: Case, compiled: bool, has_one_shape: bool = False, ranks: Ranks | None = None) -> TrainStep:
    network = random_model(one_layer(case.config), seed=3, dtype=torch.float32)
    if case.lora:
        torch.manual_seed(0)
        add_lora(network, ["*_proj"], rank=2, alpha=4.0)
    return step_of(
        network,
        torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.01),
        case.objective,
        Host(torch.device("cpu"), ranks or Ranks()),
        has_one_shape,
        compile=compiled,
        activation_checkpointing=case.recompute,
    )


def batches(case: Case, n: int = len(SIZES)) -> list[Batch]:
    rng = np.random.default_rng(0)
    examples = [case.rows(rng, *SIZES[i], i % 2 == 1) for i in range(n)]
    return [case.objective.collate(rows, rng) for rows in examples]


def weights(step: TrainStep) -> list[Tensor]:
    return [p.detach().clone() for p in step.network.parameters()]


@pytest.mark.parametrize("name", CASES)
def test_a_run_of_bucketed_lengths_is_one_graph(name: str, graphs: Callable[[], int]) -> None:
    """Batches with and without padding, of different sizes; losses equal those of an eager step."""
    case = CASES[name]
    compiled, eager = step_on(case, compiled=True), step_on(case, compiled=False)
    made = batches(case)
    masks = {(b.attention_mask is None, b.source_ids is None or b.source_attention_mask is None) for b in made}
    assert len(masks) == 2, "some batches have no padding"
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = [compiled([batch], [7]) for batch in made]
    assert graphs() == 1
    for result, batch in zip(found, made, strict=True):
        expected = eager([batch], [7])
        assert result.n_targets == expected.n_targets == batch.n_targets
        if case.recompute and case.config.residual_dropout:
            continue  # the graph draws its dropout from another position of the random stream
        assert result.nats == near(expected.nats)
        assert result.gradient_norm == near(expected.gradient_norm, terms=NETWORK)
    if case.recompute and case.config.residual_dropout:
        return
    for one, other in zip(weights(compiled), weights(eager), strict=True):
        assert_close(one, other, terms=NETWORK)


@pytest.mark.filterwarnings("ignore")  # warnings of torch's own code, which would be errors here
def test_forward_and_backward_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of inductor: AOTAutograd traces forward and backward without modules."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    compiled, eager, made = step_on(PACKED, compiled=True), step_on(PACKED, compiled=False), batches(PACKED)
    assert all(batch.attention_mask is None for batch in made), "documents need no mask for padding"
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert [compiled([batch]).nats for batch in made] == near([eager([b]).nats for b in made])
    assert counters["stats"]["unique_graphs"] == 1


def test_rows_of_one_shape_need_no_masks_and_are_one_graph(graphs: Callable[[], int]) -> None:
    """Windows of a text: the kernel gets only the causal flag in every micro-batch, also after an evaluation."""
    case = CASES["llama, groups, windows"]
    step, rng = step_on(case, compiled=True, has_one_shape=True), np.random.default_rng(0)
    made = [CAUSAL.collate(plain(rng, 3, 7, padded=False), rng) for _ in range(6)]
    assert not step.gives_masks
    with torch._dynamo.config.patch(error_on_recompile=True):
        step(made[:2])
        with torch.no_grad():
            step.network.eval()(made[0].token_ids)
        step(made[2:4], [1, 2])
        step(made[4:], [3, 4])
    assert graphs() == 1


def test_dropout_of_a_compiled_step_is_a_function_of_the_seed(graphs: Callable[[], int]) -> None:
    case = CASES["gpt, dropout, recomputed"]
    [batch] = batches(case, 1)
    one, same, other = (step_on(case, compiled=True)([batch], [seed]) for seed in (1, 1, 2))
    assert one == same and one != other


def test_a_run_with_evaluations_and_accumulation_is_one_graph(tmp_path: Path, graphs: Callable[[], int]) -> None:
    """Pairs of many lengths; the log equals that of an eager run, except for rounding."""
    train = {"max_steps": 6, "eval_every": 2, "log_every": 1, "grad_accumulation": 2}
    run = pair_run(tmp_path, **train, compile=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = api.train(run, tmp_path / "compiled")
    assert graphs() == 1
    eager = api.train(replace(run, train=replace(run.train, compile=False)), tmp_path / "eager")
    assert compiled.reports["valid"].loss == near(eager.reports["valid"].loss, terms=NETWORK)
    for one, other in zip(metrics(compiled.folder), metrics(eager.folder), strict=True):
        assert one.keys() == other.keys()
        numbers = {key: value for key, value in other.items() if isinstance(value, (int, float))}
        assert {key: one[key] for key in numbers} == near(numbers, terms=NETWORK)


def test_only_rows_of_many_lengths_compile_with_dynamic_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "compile", lambda loss, **how: asked.append(how) or loss)
    run = tiny_run(write_text(tmp_path), max_steps=1, compile=True)
    api.train(run, tmp_path / "windows")
    api.train(replace(run, data=replace(run.data, packing=PackedRows())), tmp_path / "packed")
    api.train(pair_run(tmp_path, max_steps=1, compile=True), tmp_path / "pairs")
    api.train(text_run_of(tmp_path, SpansConfig(), max_steps=1, compile=True), tmp_path / "spans")
    assert asked == [{"dynamic": dynamic} for dynamic in (False, False, True, True)]


@pytest.mark.filterwarnings("ignore")  # warnings of torch's own code, which would be errors here
def test_several_processes_trace_the_network_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The wrapper's code is not compiled; batches of other lengths, with and without an exchange, add nothing."""
    from torch._dynamo.utils import counters

    def work() -> None:
        torch._dynamo.reset()
        counters.clear()
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            step = step_on(PACKED, compiled=True, ranks=Replicated(ParallelConfig(), torch.device("cpu")))
            eager = step_on(PACKED, compiled=False)
            made = batches(PACKED)
            results = [step(made[:2])]
            n_graphs = counters["stats"]["unique_graphs"]
            with torch._dynamo.config.patch(error_on_recompile=True):
                results.append(step(made[2:]))
            assert counters["stats"]["unique_graphs"] == n_graphs <= 2
            for result, part in zip(results, (made[:2], made[2:]), strict=True):
                assert result.nats == near(eager(part).nats)
        finally:
            dist.destroy_process_group()

    # In a separate process: the threads of a process group do not exist in children that later tests fork.
    assert done(work) == 0


def test_a_run_decides_auto_once_and_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule decides at the start; a resumed run takes what was recorded, also where the rule decides otherwise."""
    reporter, n_compiled = Recording(), Counter[str]()
    run = tiny_run(write_text(tmp_path), max_steps=6, eval_every=2)
    api.train(run, tmp_path / "eager", reporter)
    assert read_run(tmp_path / "eager").train.compile is False
    assert any("not compiled (no gain on a CPU)" in message for message in reporter.messages)
    monkeypatch.setattr(torch, "compile", lambda loss, **how: n_compiled.update(["calls"]) or loss)
    seen: list[tuple[Any, ...]] = []
    with monkeypatch.context() as patch:
        patch.setattr("glassformer.training.run.choose_compile", lambda *given: seen.append(given) or (True, "long"))
        signal_at(patch, 3)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "run")
    narrow = replace(run, train=replace(run.train, precision="fp32"))
    assert seen[0][0] == "auto" and seen[0][3] is True and seen[0][4] == least_seconds(narrow, 1)
    assert read_run(tmp_path / "run").train.compile is True
    api.resume(tmp_path / "run")
    assert n_compiled["calls"] == 2


# Where compiling is impossible


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (RecurrentConfig(d_embedding=8, d_encoder=8, d_decoder=8), "recurrent modules"),
        (replace(PAPER, vocab_size=0, experts=Experts(4, 2)), "experts"),
    ],
)
def test_a_new_run_of_what_cannot_be_traced_is_refused(model: ModelConfig, part: str, tmp_path: Path) -> None:
    run = pair_run(tmp_path, model=model, compile=True)
    with pytest.raises(UserError, match=rf"train\.compile is not available: torch\.compile does not support {part};"):
        api.train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_compiler(*_: Any) -> Any:
        raise RuntimeError("no C++ compiler found")

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=without_compiler))
    case = Case(GPT, CAUSAL, plain)
    with pytest.raises(
        UserError,
        match=r"torch\.compile failed: .*no C\+\+ compiler found; correct the cause, or leave train\.compile out",
    ):
        step_on(case, compiled=True)(batches(case, 1))
