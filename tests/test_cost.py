"""What a plan says, beside what it is about: real networks, PyTorch's own counter, saved tensors, published figures."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from configs import CONFIGS, RECURRENT, Recorder, random_ids, random_inputs
from glassformer.config import (
    AlibiPositions,
    LearnedPositions,
    NoPositions,
    PositionHead,
    RelativePositions,
    RotaryPositions,
    SequenceHead,
    SinusoidalPositions,
    Stack,
    TokenHead,
    TransformerConfig,
)
from glassformer.cost.activations import Activations, Kernels, activations
from glassformer.cost.flops import Shape, forward_flops, training_flops
from glassformer.cost.hardware import GIB, GPUS, Gpu, find_gpu
from glassformer.cost.memory import cache_bytes, sharded, training_memory
from glassformer.cost.parameters import parameter_counts
from glassformer.cost.plan import plan_run
from glassformer.errors import UserError
from glassformer.models.build import build_model
from glassformer.objectives.loss import token_cross_entropy
from glassformer.presets import PRESETS, preset
from glassformer.recurrent_config import AttendAfter, AttendBefore, ModelConfig, NoAttention, RecurrentConfig
from glassformer.run_config import LoraConfig, MaskedConfig, PairData, Run, TokenizerConfig
from glassformer.train_config import AdamConfig, AdamWConfig, MuonConfig, ParallelConfig, TrainConfig
from glassformer.training.optimizers import build_optimizer, hidden_matrices, state_tensors

EVERY: dict[str, ModelConfig] = {**CONFIGS, **RECURRENT}
SHAPE = Shape(n_rows=3, n_tokens=21, n_source=17)


# Parameters


def require_counts(config: ModelConfig) -> None:
    network, counts = build_model(config, "meta"), parameter_counts(config)
    assert counts.total == network.n_parameters()
    assert counts.matrices == sum(p.numel() for _, p in hidden_matrices(network))
    if isinstance(config, TransformerConfig):
        blocks = [b for n, b in network.named_modules() if n.rsplit(".", 1)[0].endswith("blocks")]
        assert counts.largest_layer == max((sum(p.numel() for p in b.parameters()) for b in blocks), default=0)


@pytest.mark.parametrize("name", PRESETS)
def test_the_closed_form_is_the_network_on_every_preset(name: str) -> None:
    require_counts(replace(PRESETS[name], vocab_size=PRESETS[name].vocab_size or 300))


@pytest.mark.parametrize("name", EVERY)
def test_the_closed_form_is_the_network_on_every_axis(name: str) -> None:
    require_counts(EVERY[name])


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    group, n_kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Stack(
        n_layers=draw(st.integers(0, 3)),
        n_heads=group * n_kv_heads,
        n_kv_heads=draw(st.sampled_from((0, n_kv_heads))),
        d_head=2 * draw(st.integers(1, 4)),
        d_value=draw(st.integers(0, 5)),
        d_ff=draw(st.integers(0, 20)),
    )


@st.composite
def transformers(draw: st.DrawFn) -> TransformerConfig:
    which = draw(st.sampled_from(("encoder", "decoder", "both")))
    both, flags = which == "both", st.booleans()
    encoder, decoder = (draw(stacks()) if which in (side, "both") else None for side in ("encoder", "decoder"))
    share = both and draw(flags)
    positions = (
        LearnedPositions(offset=draw(st.integers(0, 3))),
        SinusoidalPositions(),
        RotaryPositions(),
        RelativePositions(n_buckets=draw(st.integers(4, 9))),
        AlibiPositions(),
        NoPositions(),
    )
    heads = (
        TokenHead(draw(flags), draw(st.sampled_from(("none", "learned", "constant")))),
        PositionHead(draw(st.integers(1, 5))),
        SequenceHead(draw(st.integers(1, 5)), pooler=draw(st.sampled_from(("none", "tanh")))),
    )
    return TransformerConfig(
        encoder=encoder,
        decoder=decoder,
        d_model=2 * draw(st.integers(1, 9)),
        d_embedding=2 * draw(st.integers(0, 9)),
        vocab_size=draw(st.integers(1, 40)),
        source_vocab_size=draw(st.integers(0, 40)) if both and not share else 0,
        n_token_types=draw(st.integers(0, 3)),
        max_len=draw(st.integers(1, 30)),
        source_max_len=draw(st.integers(0, 30)),
        share_embeddings=share,
        tie_output=draw(flags),
        positions=draw(st.sampled_from(positions)),
        norm=draw(st.sampled_from(("layernorm", "rmsnorm"))),
        norm_weight=draw(flags),
        norm_bias=draw(flags),
        norm_order=draw(st.sampled_from(("pre", "post", "sandwich"))),
        final_norm=draw(flags),
        embedding_norm=draw(flags),
        qk_norm=draw(flags),
        gated_ff=draw(flags),
        fused_qkv=draw(flags),
        qkv_bias=draw(flags),
        attn_out_bias=draw(flags),
        ff_bias=draw(flags),
        head=draw(st.sampled_from(heads)),
    )


@st.composite
def recurrents(draw: st.DrawFn) -> RecurrentConfig:
    flags, widths = st.booleans(), st.integers(1, 9)
    score = draw(st.sampled_from(("additive", "general", "scaled_dot")))
    d_attention = 0 if score == "general" else draw(st.integers(0, 7))
    kinds = (
        NoAttention(draw(flags), draw(flags)),
        AttendBefore(score, d_attention, draw(flags)),
        AttendAfter(score, d_attention, draw(flags)),
    )
    share = draw(flags)
    return RecurrentConfig(
        cell=draw(st.sampled_from(("rnn", "gru", "lstm"))),
        n_layers=draw(st.integers(1, 3)),
        bidirectional=draw(flags),
        d_embedding=draw(widths),
        d_encoder=draw(widths),
        d_decoder=draw(widths),
        attention=draw(st.sampled_from(kinds)),
        vocab_size=draw(st.integers(1, 30)),
        source_vocab_size=0 if share else draw(st.integers(0, 30)),
        share_embeddings=share,
    )


@given(config=st.one_of(transformers(), recurrents()))
@settings(max_examples=80, deadline=None)
def test_the_closed_form_is_the_network_on_odd_ones(config: ModelConfig) -> None:
    require_counts(config)


# FLOPs


def counted(config: ModelConfig, shape: Shape) -> tuple[int, int]:
    """PyTorch's count of a forward, and of forward and backward, of the reference attention.

    Double precision and a tap, because the counter knows neither the CPU's fused attention nor its LSTM.
    """
    network = build_model(config).double().train()
    inputs = random_inputs(network, shape.n_rows, shape.n_tokens, shape.n_source)
    others: dict[str, Any] = dict(inputs.others)
    if isinstance(config, TransformerConfig):
        others["tap"] = Recorder()
    with FlopCounterMode(display=False) as counter:
        logits = network(inputs.token_ids, **others)
        forward = counter.get_total_flops()
        logits.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("name", CONFIGS)
def test_flops_of_a_transformer_are_those_that_pytorch_counts(name: str) -> None:
    forward, both = counted(CONFIGS[name], SHAPE)
    assert forward_flops(CONFIGS[name], SHAPE).total == forward
    assert training_flops(CONFIGS[name], SHAPE) == both


@pytest.mark.parametrize("name", RECURRENT)
def test_flops_of_a_recurrent_model_are_those_that_pytorch_counts(name: str) -> None:
    """But for vᵀtanh(…), a product with a vector, which the counter leaves out.

    The backward is less than twice the forward by what a first state of zeros, which learns nothing, saves.
    """
    config = RECURRENT[name]
    forward, both = counted(config, SHAPE)
    vectors = 0
    if getattr(config.attention, "score", None) == "additive":
        d_attention = getattr(config.attention, "d_attention", 0) or config.d_decoder
        vectors = 2 * SHAPE.n_rows * SHAPE.n_tokens * SHAPE.n_source * d_attention
    expected = forward_flops(config, SHAPE).total - vectors
    assert expected == forward
    assert 0.98 * 3 * expected < both <= 3 * expected


def test_recomputed_blocks_are_at_most_one_more_forward() -> None:
    """PyTorch stops recomputing where nothing more is kept, short of a pre-norm block's last product."""
    config = CONFIGS["post_norm"]
    network = build_model(config).double().train()
    network.decoder.activation_checkpointing = True  # type: ignore[union-attr]
    with FlopCounterMode(display=False) as counter:
        network(random_ids(19, 3, 21), tap=Recorder()).sum().backward()
    assert training_flops(config, SHAPE, recomputed=True) == counter.get_total_flops()


def test_only_scored_tokens_meet_the_head() -> None:
    some, every = (forward_flops(CONFIGS["bert"], Shape(2, 20, n_scored=n)) for n in (3, 0))
    assert some.head * 20 == every.head * 3
    assert (some.layers, some.attention) == (every.layers, every.attention)


# Activations


def saved_bytes(config: ModelConfig, dtype: torch.dtype, autocast: bool = False, checkpointing: bool = False) -> int:
    """Distinct storages that autograd saves in a forward and its loss, weights and half copies of them excepted."""
    network = build_model(config).to(dtype).train()
    for module in network.modules():
        if checkpointing and hasattr(module, "activation_checkpointing"):
            module.activation_checkpointing = True  # type: ignore[assignment]
    inputs = random_inputs(network, SHAPE.n_rows, SHAPE.n_tokens, SHAPE.n_source)
    head = getattr(config, "head", TokenHead())
    n_outputs = config.vocab_size if isinstance(head, TokenHead) else head.n_labels
    places = (SHAPE.n_rows,) if isinstance(head, SequenceHead) else (SHAPE.n_rows, SHAPE.n_tokens)
    weights = list(network.parameters())
    own = {x.untyped_storage()._cdata for x in [*weights, *network.buffers()]}
    shapes = {shape for w in weights for shape in (w.shape, w.shape[::-1])}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        is_copy = x.dtype == torch.bfloat16 and x.shape in shapes
        if x.untyped_storage()._cdata not in own and not is_copy:
            found[x.untyped_storage()._cdata] = x.untyped_storage()  # held, so that no other takes its place
        return x

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = network(inputs.token_ids, **inputs.others)
        token_cross_entropy(logits, random_ids(n_outputs, *places), 1)
    return sum(storage.nbytes() for storage in found.values())


def predicted(config: ModelConfig, kernels: Kernels, checkpointing: bool = False) -> int:
    kept = activations(config, SHAPE, kernels, checkpointing)
    return kept.layers + kept.logits // 2 + 4  # log-probabilities without their gradient, and their divisor


DROPOUTS = {"embedding_dropout": 0.1, "residual_dropout": 0.1, "ff_dropout": 0.1, "token_dropout": 0.1}
NEARLY = {"rotary_partial_qk_norm", *(name for name, c in CONFIGS.items() if isinstance(c.head, SequenceHead))}


@pytest.mark.parametrize("dropouts", [{}, DROPOUTS, {"attention_dropout": 0.1}], ids=["none", "all", "attention"])
@pytest.mark.parametrize("name", CONFIGS)
def test_activations_are_what_autograd_saves(name: str, dropouts: dict[str, Any]) -> None:
    """To the byte; pooling, and a layout that turning a part of a head changes, within a tenth."""
    config = replace(CONFIGS[name], **dropouts)
    measured, expected = saved_bytes(config, torch.float32), predicted(config, Kernels(on_cpu=True))
    assert expected == (pytest.approx(measured, rel=0.1) if name in NEARLY else measured)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "relu2"])
@pytest.mark.parametrize("gated", [False, True])
def test_activations_of_every_feed_forward(activation: Any, gated: bool) -> None:
    for dropout in (0.0, 0.1):
        config = replace(CONFIGS["gpt"], activation=activation, gated_ff=gated, ff_dropout=dropout)
        assert predicted(config, Kernels(on_cpu=True)) == saved_bytes(config, torch.float32)


@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "paper", "fused_qkv", "two_vocabularies"])
def test_activations_in_half_precision(name: str) -> None:
    """Within 3 %: some small tensors are cast twice."""
    config = replace(CONFIGS[name], vocab_size=101, source_vocab_size=0, positions=RotaryPositions())
    for dropouts in ({}, {"embedding_dropout": 0.1, "residual_dropout": 0.1, "ff_dropout": 0.1}):
        config = replace(config, **dropouts)  # type: ignore[arg-type]
        measured = saved_bytes(config, torch.float32, autocast=True)
        assert predicted(config, Kernels(half=True, on_cpu=True)) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("gpt", 0),
        ("sandwich", 0),
        ("bert", 0),
        ("llama", 2 * SHAPE.n_tokens * 6 * 4),  # cosines and sines
        ("paper", SHAPE.n_rows * SHAPE.n_source * 16 * 4),  # the encoder's output
    ],
)
def test_activations_with_recomputed_blocks(name: str, held: int) -> None:
    """What stays is the blocks' inputs; hooks see neither the recomputed block nor what is `held` for all of them."""
    config = CONFIGS[name]
    measured = saved_bytes(config, torch.float32, checkpointing=True)
    assert predicted(config, Kernels(on_cpu=True), checkpointing=True) - max(_blocks(config)) == measured + held


def _blocks(config: TransformerConfig) -> list[int]:
    """Bytes of a block of each stack: what one more of it adds."""
    found = []
    for side in ("encoder", "decoder"):
        stack = getattr(config, side)
        if stack is not None:
            more = replace(config, **{side: replace(stack, n_layers=stack.n_layers + 1)})
            found.append(predicted(more, Kernels(on_cpu=True)) - predicted(config, Kernels(on_cpu=True)))
    return found


def test_activations_on_a_gpu() -> None:
    """Masks of dropout are bytes, the attention with dropout is fused, and RMSNorm keeps its input alone."""
    plain, gpu, cpu = CONFIGS["gpt"], Kernels(), Kernels(on_cpu=True)
    n_masked = SHAPE.n_rows * SHAPE.n_tokens * plain.d_model * 4  # two blocks of two sublayers
    dropped = replace(plain, residual_dropout=0.1)
    assert predicted(dropped, gpu) - predicted(plain, gpu) == n_masked
    assert predicted(dropped, cpu) - predicted(plain, cpu) == 4 * n_masked
    assert predicted(plain, gpu) == predicted(plain, cpu) == predicted(replace(plain, attention_dropout=0.1), gpu)
    n_normed = SHAPE.n_rows * SHAPE.n_tokens * 16 * 5 * 4
    assert predicted(CONFIGS["llama"], cpu) - predicted(CONFIGS["llama"], gpu) == n_normed


@pytest.mark.parametrize("name", RECURRENT)
def test_activations_of_recurrent_models_are_estimated(name: str) -> None:
    """Within a fifth of what its equations keep, written out: in double precision, where the CPU has no other way."""
    config = RECURRENT[name]
    config = replace(
        config,
        d_embedding=4 * config.d_embedding,
        d_encoder=4 * config.d_encoder,
        d_decoder=4 * config.d_decoder,
        vocab_size=100,
    )
    measured = saved_bytes(config, torch.float64) / 2
    assert predicted(config, Kernels(on_cpu=True)) == pytest.approx(measured, rel=0.2)


# State


@pytest.mark.parametrize("name", ["gpt", "bert", "unequal_stacks", "bahdanau", "luong"])
@pytest.mark.parametrize("optimizer", [AdamConfig(), AdamWConfig(), MuonConfig()], ids=lambda o: o.kind)
def test_the_optimizer_keeps_what_is_said(name: str, optimizer: Any) -> None:
    network = build_model(EVERY[name])
    steps = build_optimizer(network, optimizer)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    steps.step()
    moments = sum(x.numel() * x.element_size() for key, x in state_tensors(steps).items() if not key.endswith("step"))
    memory = training_memory(EVERY[name], TrainConfig(optimizer=optimizer, ema_decay=0.9), Activations(0, 0))
    assert memory.optimizer == moments
    assert memory.weights == memory.gradients == memory.average == 4 * network.n_parameters()
    assert memory.half_copies == 0


@pytest.mark.parametrize("name", ["gpt", "llama", "d_embedding", "paper", "two_vocabularies"])
def test_half_copies_are_the_matrices(name: str) -> None:
    config = CONFIGS[name]
    network = build_model(config)
    linears = {m.weight for m in network.modules() if isinstance(m, torch.nn.Linear)}
    outside = {p.weight for s in (network.encoder, network.decoder) if s and (p := s.embeddings.projection) is not None}
    memory = training_memory(config, TrainConfig(precision="bf16"), Activations(0, 0))
    assert memory.half_copies == 2 * sum(weight.numel() for weight in linears - outside)


def test_a_divided_state() -> None:
    config, train = CONFIGS["gpt"], TrainConfig()
    counts = parameter_counts(config)
    whole = training_memory(config, train, Activations(1000, 10))
    part = sharded(whole, config, train, 4)
    assert 4 * part.state == whole.state
    assert part.gathered == 8 * (counts.largest_layer + counts.embeddings)
    assert part.total == part.state + part.gathered + 1010
    half = replace(train, precision="bf16")
    cast = sharded(training_memory(config, half, Activations(0, 0)), config, half, 4)
    assert cast.half_copies == 0 and 4 * cast.gathered == 3 * part.gathered  # cast as they are gathered


@pytest.mark.parametrize("name", [name for name, config in EVERY.items() if getattr(config, "decoder", True)])
def test_the_cache_of_generation(name: str) -> None:
    network = build_model(EVERY[name]).eval()
    inputs = random_inputs(network, 2, 1, 7)
    with torch.no_grad():
        _, state = network.step(inputs.token_ids, network.start(2, 15, inputs.others.get("source_ids")))
    assert cache_bytes(EVERY[name], 2, 15, 7) == state.cache_bytes


# Published figures


@pytest.mark.parametrize(
    ("name", "parameters", "flops"),
    [
        # Brown (2020), table D.1. Table 2.1 contradicts itself for gpt3-xl and gpt3-13b, see `presets.py`: here the
        # heads fill d_model, which is what these totals fit.
        ("gpt3-small", 125e6, 2.25e20),
        ("gpt3-medium", 356e6, 6.41e20),
        ("gpt3-large", 760e6, 1.37e21),
        ("gpt3-xl", 1320e6, 2.38e21),
        ("gpt3-2.7b", 2650e6, 4.77e21),
        ("gpt3-6.7b", 6660e6, 1.20e22),
        ("gpt3-13b", 12850e6, 2.31e22),
        ("gpt3-175b", 174600e6, 3.14e23),
    ],
)
def test_gpt3_as_published(name: str, parameters: float, flops: float) -> None:
    config = preset(name)
    n = parameter_counts(config).total
    assert n == pytest.approx(parameters, rel=0.005)
    assert 6 * n * 300e9 == pytest.approx(flops, rel=0.006)  # their rule, which has no attention
    ours = training_flops(config, Shape(1, 2048)) / 2048 * 300e9
    attention = 3 * forward_flops(config, Shape(1, 2048)).attention / 2048 * 300e9
    positions = 6 * config.max_len * config.d_model * 300e9
    assert ours - attention + positions == pytest.approx(flops, rel=0.007)


def test_the_original_transformer_as_published() -> None:
    """65 M and 213 M parameters, to what our vocabulary of 37,000 leaves; FLOPs are a rate × time, not a count."""
    base, big = (parameter_counts(preset(f"transformer-{size}")).total for size in ("base", "big"))
    assert base / 65e6 == pytest.approx(1, abs=0.03) and big / 213e6 == pytest.approx(1, abs=0.01)
    rate = 8 * 9.5e12  # 8 P100s, which are said to sustain 9.5 TFLOP/s (footnote 5)
    assert 12 * 3600 * rate == pytest.approx(3.3e18, rel=0.01)
    assert 3.5 * 24 * 3600 * rate == pytest.approx(2.3e19, rel=0.01)
    assert 6 * base * 100_000 * 25_000 < 3.3e18 / 3


@pytest.mark.parametrize(
    ("name", "millions"), [("gpt2", 124), ("gpt2-medium", 355), ("gpt2-large", 774), ("gpt2-xl", 1558)]
)
def test_gpt2_as_published(name: str, millions: int) -> None:
    assert round(parameter_counts(preset(name)).total / 1e6) == millions


# The plan


def tiny(**train: Any) -> Run:
    return Run(name="tiny", model=CONFIGS["gpt"], train=TrainConfig(max_steps=10, batch_size=4, **train))


def card(n_bytes: float) -> Gpu:
    """A GPU with so many bytes that can be used."""
    return Gpu("card", n_bytes / 0.9 / GIB * (1 + 1e-12), 1e12, 1e11)  # type: ignore[arg-type]


def test_time_and_cost_are_flops_over_rate() -> None:
    plan = plan_run(tiny(accumulation=4), find_gpu("h200"), 2, utilisation=0.25, price=3.5)
    per_token = training_flops(CONFIGS["gpt"], Shape(4, 24)) / (4 * 24)
    assert plan.n_tokens == 10 * 4 * 4 * 24 and plan.total_flops == per_token * plan.n_tokens
    assert plan.seconds == pytest.approx(plan.total_flops / (2 * 67e12 * 0.25))
    assert plan.n_parameters == plan.parameters.total == build_model(CONFIGS["gpt"]).n_parameters()
    assert plan.cost == pytest.approx(3.5 * 2 * plan.seconds / 3600)
    assert plan_run(tiny(precision="bf16"), find_gpu("h200")).seconds == pytest.approx(per_token * 960 / (989e12 * 0.4))
    assert plan_run(tiny(), find_gpu("h200")).cost is None


def test_the_simplest_layout_that_fits_is_chosen() -> None:
    sizes = {(x.strategy, x.checkpointing): x.memory.total for x in plan_run(tiny(), card(1), 16).layouts}
    assert list(sizes) == [(s, c) for c in (False, True) for s in ("ddp", "hybrid", "fsdp")]
    for (strategy, checkpointing), n_bytes in sizes.items():
        simpler = list(sizes.values())[: list(sizes).index((strategy, checkpointing))]
        plan = plan_run(tiny(), card(n_bytes), 16)
        assert plan.layout.fits
        if all(other > n_bytes for other in simpler):
            assert (plan.layout.strategy, plan.layout.checkpointing) == (strategy, checkpointing)
        assert not plan_run(tiny(), card(min(sizes.values()) - 1), 16).layout.fits
    assert plan_run(tiny(), card(1e9), 1).flags == ""
    flags = plan_run(tiny(activation_checkpointing=True, accumulation=16), card(1e9), 16).flags
    assert flags == "--parallel.strategy ddp --train.activation-checkpointing"


def test_gpus_share_the_micro_batches_of_a_step() -> None:
    """`train` refuses an accumulation that is no multiple of the processes: the next one is planned, and counted."""
    one, eight = (plan_run(tiny(accumulation=3), find_gpu("h200"), n_gpus) for n_gpus in (1, 8))
    assert (one.accumulation, one.notes, one.n_tokens) == (3, (), 10 * 3 * 4 * 24)
    assert (eight.accumulation, eight.n_tokens) == (8, 10 * 8 * 4 * 24)
    assert eight.notes == (
        "8 GPUs share the micro-batches of a step, so train.accumulation 3 becomes 8: a step reads 768 tokens, not 288",
    )
    assert eight.flags == "--train.accumulation 8 --parallel.strategy ddp"
    assert eight.seconds == pytest.approx(one.seconds / 8 * 8 / 3)
    same = plan_run(tiny(accumulation=8), find_gpu("h200"), 8)
    assert (same.notes, same.flags, same.seconds) == ((), "--parallel.strategy ddp", eight.seconds)
    few = plan_run(tiny(), find_gpu("h200"), 8, n_tokens=1000)
    assert few.n_tokens == 1000 and few.accumulation == 8
    pairs = replace(tiny(), model=CONFIGS["two_vocabularies"], data=PairData(batch_tokens=100))
    assert "a step reads 200 tokens, not 100" in plan_run(pairs, find_gpu("h200"), 2).notes[0]


def test_muon_is_never_divided() -> None:
    muon = tiny(optimizer=MuonConfig(adamw=AdamWConfig()), accumulation=16)
    plan = plan_run(muon, card(1e9), 16)
    assert [layout.strategy for layout in plan.layouts] == ["ddp", "ddp"]
    assert len(plan.notes) == 1 and plan.notes[0].startswith("muon steps whole matrices")
    assert plan_run(muon, card(1e9), 1).notes == ()
    for n_gpus in (1, 16):
        short = plan_run(muon, card(min(layout.memory.total for layout in plan.layouts) - 1), n_gpus)
        assert not short.layout.fits and short.least_gpus is None and short.notes == plan.notes


def test_flags_repeat_those_that_were_given() -> None:
    given_flags = {"train.batch_size": "4", "train.accumulation": "3", "parallel.strategy": "fsdp", "name": "a b"}
    plan = plan_run(tiny(accumulation=3), card(1e9), 2, given=given_flags)
    assert plan.flags == "--train.batch-size 4 --train.accumulation 4 --name 'a b' --parallel.strategy ddp"


def test_a_state_is_divided_within_a_node_where_there_are_several() -> None:
    def state(n_gpus: int) -> dict[str, int]:
        layouts = plan_run(tiny(activation_checkpointing=True), card(1e9), n_gpus).layouts
        return {layout.strategy: layout.memory.state for layout in layouts}

    whole = 16 * parameter_counts(CONFIGS["gpt"]).total
    assert state(1) == {"none": whole}
    assert state(8) == {"ddp": whole, "fsdp": whole / 8}
    assert list(state(12)) == ["ddp", "fsdp"]
    assert state(16) == {"ddp": whole, "hybrid": whole / 8, "fsdp": whole / 16}
    fours = replace(tiny(activation_checkpointing=True), parallel=ParallelConfig(shard_size=4))
    sizes = {layout.strategy: layout.n_parts for layout in plan_run(fours, card(1e9), 8).layouts}
    assert sizes == {"ddp": 1, "hybrid": 4, "fsdp": 8}


def test_recomputing_is_part_of_the_time() -> None:
    plan = plan_run(tiny(activation_checkpointing=True), find_gpu("h200"))
    assert plan.total_flops == training_flops(CONFIGS["gpt"], Shape(4, 24), recomputed=True) * 10
    recurrent = replace(tiny(), model=RECURRENT["bahdanau"], data=PairData(batch_tokens=100))
    assert [layout.checkpointing for layout in plan_run(recurrent, find_gpu("h200")).layouts] == [False]


def test_as_few_gpus_as_are_needed() -> None:
    run = Run(name="wide", model=replace(CONFIGS["gpt"], vocab_size=19, decoder=Stack(40, 4, d_ff=640)))
    run = replace(run, train=TrainConfig(batch_size=1))
    whole = plan_run(run, card(1), 1).layouts[-1].memory
    plan = plan_run(run, card(whole.total / 2), 1)
    least = plan.least_gpus
    assert not plan.layout.fits and least is not None and least > 1
    assert plan_run(run, card(whole.total / 2), least).layout.fits
    assert not plan_run(run, card(whole.total / 2), least - 1).layout.fits
    assert plan_run(run, card(whole.activations), 1).least_gpus is None
    assert plan_run(run, card(2 * whole.total), 1).least_gpus == 1


def test_rows_of_other_tasks() -> None:
    masked = plan_run(replace(tiny(), model=CONFIGS["bert"], objective=MaskedConfig(share=0.25)), find_gpu("h200"))
    assert masked.shape == Shape(4, 24, 0, 6)
    pairs = replace(tiny(), model=CONFIGS["two_vocabularies"], data=PairData(batch_tokens=100))
    plan = plan_run(pairs, find_gpu("h200"))
    assert plan.shape == Shape(3, 24, 30) and plan.n_tokens == 1000
    assert plan_run(pairs, find_gpu("h200"), context=10).shape == Shape(10, 10, 10)


def test_what_a_run_leaves_open_is_said() -> None:
    model = replace(CONFIGS["classifier_first"], vocab_size=0, head=SequenceHead())
    plan = plan_run(replace(tiny(), model=model), find_gpu("h200"))
    assert plan.config.vocab_size == TokenizerConfig().vocab_size and plan.config.head.n_labels == 2  # type: ignore[union-attr]
    assert "vocabulary 4,096" in plan.assumptions[0] and "2 labels" in plan.assumptions[1]


@pytest.mark.parametrize(
    ("run", "options", "words"),
    [
        (tiny(), {"n_gpus": 0}, "--gpus is 0 and must be at least 1"),
        (tiny(), {"n_tokens": 0}, "--tokens is 0"),
        (tiny(), {"utilisation": 1.5}, "--utilisation is 1.5 and must be above 0 and at most 1"),
        (tiny(), {"price": -1.0}, "--price is -1.0"),
        (tiny(), {"context": 25}, "the context is 25 and must be from 1 to model.max_len, 24"),
        (replace(tiny(), lora=LoraConfig()), {}, "leave out [lora]"),
        (
            replace(tiny(), model=replace(CONFIGS["gpt"], vocab_size=0), tokenizer=TokenizerConfig(vocab_size=0)),
            {},
            "give --model.vocab-size N",
        ),
    ],
)
def test_plans_that_cannot_be(run: Run, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        plan_run(run, find_gpu("h200"), **options)
    assert words in str(error.value)


def test_gpus_are_found_by_name() -> None:
    assert all(find_gpu(name).name == name for name in GPUS)
    with pytest.raises(UserError, match="unknown GPU 'H10': did you mean h100"):
        find_gpu("H10")
    with pytest.raises(UserError, match="a t4 multiplies no bf16"):
        plan_run(tiny(precision="bf16"), find_gpu("t4"))
