"""Published figures, layouts, times and flags of a plan."""

from dataclasses import replace
from typing import Any

import pytest

from configs import CONFIGS, RECURRENT
from glassformer.config.presets import preset
from glassformer.config.run import LoraConfig, MaskedConfig, PairData, Run, TokenizerConfig
from glassformer.config.train import AdamWConfig, MuonConfig, TrainConfig
from glassformer.config.transformer import (
    SequenceHead,
    Stack,
)
from glassformer.cost.flops import Shape, forward_flops, training_flops
from glassformer.cost.hardware import GIB, GPUS, Gpu, find_gpu, require_rates
from glassformer.cost.parameters import parameter_counts
from glassformer.cost.plan import least_seconds, plan_run
from glassformer.errors import UserError
from glassformer.models.build import build_model
from tolerances import about

# Published figures


@pytest.mark.parametrize(
    ("name", "parameters", "flops"),
    [
        # Brown (2020), table D.1. Table 2.1 contradicts itself for gpt3-xl and gpt3-13b, see `config/presets.py`: here
        # the heads fill d_model, which agrees with these totals.
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
    assert n == about(parameters, percent=0.5)
    assert 6 * n * 300e9 == about(flops, percent=0.6)  # the paper's rule, which has no attention
    ours = training_flops(config, Shape(1, 2048)) / 2048 * 300e9
    attention = 3 * forward_flops(config, Shape(1, 2048)).attention / 2048 * 300e9
    positions = 6 * config.max_len * config.d_model * 300e9
    assert ours - attention + positions == about(flops, percent=0.7)


def test_the_original_transformer_as_published() -> None:
    """65 M and 213 M parameters, up to the vocabulary of 37,000; the paper's FLOPs are a rate × time, not a count."""
    base, big = (parameter_counts(preset(f"transformer-{size}")).total for size in ("base", "big"))
    assert base == about(65e6, percent=3) and big == about(213e6, percent=1)
    rate = 8 * 9.5e12  # 8 P100s with 9.5 TFLOP/s each (footnote 5)
    assert 12 * 3600 * rate == about(3.3e18, percent=1)
    assert 3.5 * 24 * 3600 * rate == about(2.3e19, percent=1)
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
    """Return a GPU with a given number of usable bytes."""
    return Gpu("card", n_bytes / 0.9 / GIB * (1 + 1e-12), 1e12, 1e11)  # type: ignore[arg-type]


def test_time_and_cost_are_flops_over_rate() -> None:
    plan = plan_run(tiny(grad_accumulation=4, precision="fp32"), find_gpu("h200"), 2).at(mfu=0.25, price=3.5)
    per_token = training_flops(CONFIGS["gpt"], Shape(4, 24)) / (4 * 24)
    assert plan.n_tokens == 10 * 4 * 4 * 24 and plan.total_flops == per_token * plan.n_tokens
    assert plan.seconds == pytest.approx(plan.total_flops / (2 * 67e12 * 0.25))
    assert plan.n_parameters == plan.parameters.total == build_model(CONFIGS["gpt"]).n_parameters()
    assert plan.cost == pytest.approx(3.5 * 2 * plan.seconds / 3600)
    assert plan_run(tiny(precision="bf16"), find_gpu("h200")).seconds == pytest.approx(per_token * 960 / (989e12 * 0.4))
    assert plan_run(tiny(), find_gpu("h200")).cost is None


def test_the_least_time_is_that_of_the_fastest_gpu() -> None:
    run = tiny(precision="bf16", grad_accumulation=4)
    assert least_seconds(run, 1) == pytest.approx(plan_run(run, find_gpu("h200")).seconds)
    assert least_seconds(run, 2) == pytest.approx(plan_run(run, find_gpu("h200"), 2).seconds)
    assert all(plan_run(run, gpu).seconds >= least_seconds(run, 1) for gpu in GPUS.values() if gpu.has_bf16)
    assert 0 < least_seconds(replace(run, model=replace(run.model, vocab_size=0)), 1) < least_seconds(run, 1)


@pytest.mark.parametrize(("gpu", "precision"), [("h200", "bf16"), ("t4", "fp32")])
def test_auto_precision_is_bf16_where_the_gpu_has_it(gpu: str, precision: str) -> None:
    auto, stated = plan_run(tiny(), find_gpu(gpu)), plan_run(tiny(precision=precision), find_gpu(gpu))
    assert auto.to_dict() == stated.to_dict() and auto.precision == precision


def test_the_simplest_layout_that_fits_is_chosen() -> None:
    sizes = {(x.strategy, x.checkpointing): x.memory.total for x in plan_run(tiny(), card(1), 16).layouts}
    assert list(sizes) == [(s, c) for c in (0, 2, 1) for s in ("ddp", "fsdp")]
    for (strategy, checkpointing), n_bytes in sizes.items():
        simpler = list(sizes.values())[: list(sizes).index((strategy, checkpointing))]
        plan = plan_run(tiny(), card(n_bytes), 16)
        assert plan.layout.fits
        if all(other > n_bytes for other in simpler):
            assert (plan.layout.strategy, plan.layout.checkpointing) == (strategy, checkpointing)
        assert not plan_run(tiny(), card(min(sizes.values()) - 1), 16).layout.fits
    assert plan_run(tiny(), card(1e9), 1).flags == ""
    flags = plan_run(tiny(activation_checkpointing=True, grad_accumulation=16), card(1e9), 16).flags
    assert flags == "--parallel.strategy ddp --train.activation-checkpointing true"


def test_gpus_share_the_micro_batches_of_a_step() -> None:
    """`train` refuses an accumulation that is not a multiple of the processes: the plan uses the next multiple."""
    one, eight = (plan_run(tiny(grad_accumulation=3), find_gpu("h200"), n_gpus) for n_gpus in (1, 8))
    assert (one.grad_accumulation, one.notes, one.n_tokens) == (3, (), 10 * 3 * 4 * 24)
    assert (eight.grad_accumulation, eight.n_tokens) == (8, 10 * 8 * 4 * 24)
    assert eight.notes == (
        "8 GPUs share the micro-batches of a step, so train.grad_accumulation 3 becomes 8: a step reads 768 tokens, "
        "not 288",
    )
    assert eight.flags == "--train.grad-accumulation 8 --parallel.strategy ddp"
    assert eight.seconds == pytest.approx(one.seconds / 8 * 8 / 3)
    same = plan_run(tiny(grad_accumulation=8), find_gpu("h200"), 8)
    assert (same.notes, same.flags, same.seconds) == ((), "--parallel.strategy ddp", eight.seconds)
    few = plan_run(tiny(), find_gpu("h200"), 8, n_tokens=1000)
    assert few.n_tokens == 1000 and few.grad_accumulation == 8
    pairs = replace(tiny(), model=CONFIGS["two_vocabularies"], data=PairData(batch_tokens=100))
    assert "a step reads 200 tokens, not 100" in plan_run(pairs, find_gpu("h200"), 2).notes[0]


def test_muon_is_sharded_like_adamw() -> None:
    muon, adamw = (plan_run(tiny(optimizer=one), card(1e9), 16) for one in (MuonConfig(), AdamWConfig()))
    assert [x.strategy for x in muon.layouts] == [x.strategy for x in adamw.layouts] and muon.notes == adamw.notes


def test_an_optimizer_that_needs_whole_matrices_is_never_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MuonConfig, "traits", replace(MuonConfig.traits, needs_whole_matrices=True))
    muon = tiny(optimizer=MuonConfig(adamw=AdamWConfig()), grad_accumulation=16)
    plan = plan_run(muon, card(1e9), 16)
    assert [layout.strategy for layout in plan.layouts] == ["ddp", "ddp", "ddp"]
    assert len(plan.notes) == 1 and plan.notes[0].startswith("muon needs whole matrices")
    assert plan_run(muon, card(1e9), 1).notes == ()
    for n_gpus in (1, 16):
        short = plan_run(muon, card(min(layout.memory.total for layout in plan.layouts) - 1), n_gpus)
        assert not short.layout.fits and short.least_gpus is None and short.notes == plan.notes


def test_flags_repeat_the_given_flags() -> None:
    given_flags = {"train.batch_size": "4", "train.grad_accumulation": "3", "parallel.strategy": "fsdp", "name": "a b"}
    plan = plan_run(tiny(grad_accumulation=3), card(1e9), 2, given=given_flags)
    assert plan.flags == "--train.batch-size 4 --train.grad-accumulation 4 --name 'a b' --parallel.strategy ddp"


def test_several_nodes_shard_the_state_within_a_node() -> None:
    def state(n_gpus: int) -> dict[str, int]:
        layouts = plan_run(tiny(activation_checkpointing=True), card(1e9), n_gpus).layouts
        return {layout.strategy: layout.memory.state for layout in layouts}

    whole = 16 * parameter_counts(CONFIGS["gpt"]).total
    assert state(1) == {"none": whole}
    assert state(8) == {"ddp": whole, "fsdp": whole / 8}
    assert list(state(12)) == ["ddp", "fsdp"]
    assert state(16) == {"ddp": whole, "fsdp": whole / 16}


def test_the_time_includes_recomputation() -> None:
    plan = plan_run(tiny(activation_checkpointing=True), find_gpu("h200"))
    assert plan.total_flops == training_flops(CONFIGS["gpt"], Shape(4, 24), recomputed=True) * 10
    half = plan_run(tiny(activation_checkpointing="half"), find_gpu("h200"))
    assert half.total_flops == training_flops(CONFIGS["gpt"], Shape(4, 24), recomputed=2) * 10
    assert half.flags == "--train.activation-checkpointing half"
    assert [layout["activation_checkpointing"] for layout in half.to_dict()["layouts"]] == ["half"]
    recurrent = replace(tiny(), model=RECURRENT["bahdanau"], data=PairData(batch_tokens=100))
    assert [layout.checkpointing for layout in plan_run(recurrent, find_gpu("h200")).layouts] == [0]


def test_every_second_block_is_recomputed_before_all() -> None:
    """A run that fits with every second block recomputed does not spend the time of all."""
    deep = replace(tiny(), model=replace(CONFIGS["gpt"], decoder=replace(CONFIGS["gpt"].head_stack, n_layers=4)))
    none, half, full = plan_run(deep, card(1)).layouts
    assert [layout.checkpointing for layout in (none, half, full)] == [0, 2, 1]
    assert none.memory.total > half.memory.total > full.memory.total
    plans = {n: plan_run(deep, card(layout.memory.total)) for n, layout in ((0, none), (2, half), (1, full))}
    assert {n: plan.layout.checkpointing for n, plan in plans.items()} == {0: 0, 2: 2, 1: 1}
    assert plans[2].flags == "--train.activation-checkpointing half"
    assert plans[0].total_flops < plans[2].total_flops < plans[1].total_flops
    assert not plan_run(deep, card(full.memory.total - 1)).layout.fits


def test_half_of_one_block_is_not_proposed() -> None:
    """Every second block of a stack with one block is that block."""
    one = replace(tiny(), model=replace(CONFIGS["gpt"], decoder=replace(CONFIGS["gpt"].head_stack, n_layers=1)))
    assert [layout.checkpointing for layout in plan_run(one, card(1)).layouts] == [0, 1]


def test_the_least_number_of_gpus() -> None:
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
    masked = plan_run(replace(tiny(), model=CONFIGS["bert"], objective=MaskedConfig(mask_prob=0.25)), find_gpu("h200"))
    assert masked.shape == Shape(4, 24, 0, 6)
    pairs = replace(tiny(), model=CONFIGS["two_vocabularies"], data=PairData(batch_tokens=100))
    plan = plan_run(pairs, find_gpu("h200"))
    assert plan.shape == Shape(3, 24, 30) and plan.n_tokens == 1000
    assert plan_run(pairs, find_gpu("h200"), context=10).shape == Shape(10, 10, 10)


def test_a_plan_lists_its_assumptions() -> None:
    model = replace(CONFIGS["classifier_first"], vocab_size=0, head=SequenceHead())
    plan = plan_run(replace(tiny(), model=model), find_gpu("h200"))
    assert plan.config.vocab_size == TokenizerConfig().vocab_size and plan.config.head.n_labels == 2  # type: ignore[union-attr]
    assert "vocabulary 4,096" in plan.assumptions[0] and "2 labels" in plan.assumptions[1]


@pytest.mark.parametrize(
    ("run", "options", "words"),
    [
        (tiny(), {"n_gpus": 0}, "--gpus is 0 and must be at least 1"),
        (tiny(), {"n_tokens": 0}, "--tokens is 0"),
        (tiny(), {"context": 25}, "the context is 25 and must be from 1 to model.max_len, 24"),
        (replace(tiny(), lora=LoraConfig()), {}, "leave out [lora]"),
        (
            replace(tiny(), model=replace(CONFIGS["gpt"], vocab_size=0), tokenizer=TokenizerConfig(vocab_size=0)),
            {},
            "give --model.vocab-size N",
        ),
    ],
)
def test_impossible_plans_are_refused(run: Run, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        plan_run(run, find_gpu("h200"), **options)
    assert words in str(error.value)


@pytest.mark.parametrize("price", [None, 0.0, 3.5])
def test_a_full_utilisation_and_a_free_gpu_are_possible(price: float | None) -> None:
    require_rates(mfu=1.0, price=price)


def test_impossible_utilisations_and_prices_are_refused() -> None:
    with pytest.raises(UserError, match=r"--mfu is 1\.5 and must be above 0 and at most 1"):
        require_rates(mfu=1.5, price=None)
    with pytest.raises(UserError, match=r"--price is -1\.0"):
        require_rates(mfu=0.4, price=-1.0)


def test_gpus_are_found_by_name() -> None:
    assert all(find_gpu(name).name == name for name in GPUS)
    with pytest.raises(UserError, match="unknown GPU 'H10': did you mean h100"):
        find_gpu("H10")
    with pytest.raises(UserError, match="the GPU t4 does not support bf16"):
        plan_run(tiny(precision="bf16"), find_gpu("t4"))
