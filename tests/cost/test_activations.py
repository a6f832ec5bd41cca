"""Estimated activations equal the tensors that autograd saves."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from configs import CONFIGS, RECURRENT, random_ids, random_inputs
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import (
    RotaryPositions,
    TransformerConfig,
)
from glassformer.cost.activations import Kernels, activations
from glassformer.cost.flops import Shape
from glassformer.models.build import build_model
from glassformer.nn.kernels import attention
from glassformer.objectives.loss import token_cross_entropy
from tolerances import about

SHAPE = Shape(n_rows=3, n_tokens=21, n_source=17)


def saved_bytes(config: ModelConfig, dtype: torch.dtype, autocast: bool = False, checkpointing: int = 0) -> int:
    """Sum the distinct storages that autograd saves for the loss, without weights and their half copies."""
    network = build_model(config).to(dtype).train()
    for module in network.modules():
        if checkpointing and hasattr(module, "activation_checkpointing"):
            module.activation_checkpointing = checkpointing  # type: ignore[assignment]
    inputs = random_inputs(network, SHAPE.n_rows, SHAPE.n_tokens, SHAPE.n_source)
    n_outputs = getattr(config, "n_outputs", config.vocab_size)
    places = (SHAPE.n_rows,) if getattr(config, "reads_whole_sequence", False) else (SHAPE.n_rows, SHAPE.n_tokens)
    weights = list(network.parameters())
    own = {x.untyped_storage()._cdata for x in [*weights, *network.buffers()]}
    shapes = {shape for w in weights for shape in (w.shape, w.shape[::-1])}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        is_copy = x.dtype == torch.bfloat16 and x.shape in shapes
        if x.untyped_storage()._cdata not in own and not is_copy:
            found[x.untyped_storage()._cdata] = (
                x.untyped_storage()
            )  # kept alive, so that no other storage gets its address
        return x.detach()  # a tensor that keeps its own graph is never freed

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = network(inputs.token_ids, **inputs.others)
        token_cross_entropy(logits, random_ids(n_outputs, *places), 1)
    return sum(storage.nbytes() for storage in found.values())


def predicted(config: ModelConfig, kernels: Kernels, checkpointing: int = 0) -> int:
    kept = activations(config, SHAPE, kernels, checkpointing)
    return kept.layers + kept.logits // 2 + 4  # log-probabilities without their gradient, and the divisor


DROPOUTS = {"embedding_dropout": 0.1, "residual_dropout": 0.1, "ff_dropout": 0.1, "token_dropout": 0.1}
NEARLY = {"rotary_partial_qk_norm", *(name for name, c in CONFIGS.items() if c.reads_whole_sequence)}


@pytest.mark.parametrize("dropouts", [{}, DROPOUTS, {"attention_dropout": 0.1}], ids=["none", "all", "attention"])
@pytest.mark.parametrize("name", CONFIGS)
def test_activations_equal_what_autograd_saves(name: str, dropouts: dict[str, Any]) -> None:
    """Equal to the byte; within 10 % for pooling and for partial rotary positions, which change the layout."""
    config = replace(CONFIGS[name], **dropouts)
    measured, expected = saved_bytes(config, torch.float32), predicted(config, Kernels(on_cpu=True))
    assert expected == (about(measured, percent=10) if name in NEARLY else measured)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "relu2"])
@pytest.mark.parametrize("gated", [False, True])
def test_activations_of_every_feed_forward(activation: Any, gated: bool) -> None:
    for dropout in (0.0, 0.1):
        config = replace(CONFIGS["gpt"], activation=activation, gated_ff=gated, ff_dropout=dropout)
        assert predicted(config, Kernels(on_cpu=True)) == saved_bytes(config, torch.float32)


@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "paper", "fused_qkv", "two_vocabularies"])
def test_activations_in_half_precision(name: str) -> None:
    """The difference is below 3 %: some small tensors are cast twice."""
    config = replace(CONFIGS[name], vocab_size=101, source_vocab_size=0, positions=RotaryPositions())
    for dropouts in ({}, {"embedding_dropout": 0.1, "residual_dropout": 0.1, "ff_dropout": 0.1}):
        config = replace(config, **dropouts)  # type: ignore[arg-type]
        measured = saved_bytes(config, torch.float32, autocast=True)
        assert predicted(config, Kernels(half=True, on_cpu=True)) == about(measured, percent=3)


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
    """Only the blocks' inputs stay; hooks miss the recomputed block and the bytes `held` for all blocks."""
    config = CONFIGS[name]
    measured = saved_bytes(config, torch.float32, checkpointing=1)
    assert predicted(config, Kernels(on_cpu=True), checkpointing=1) - max(_blocks(config)) == measured + held


@pytest.mark.parametrize(("name", "n_layers"), [("gpt", 2), ("gpt", 4), ("gpt", 3), ("sandwich", 4), ("llama", 4)])
def test_activations_with_half_of_the_blocks_recomputed(name: str, n_layers: int) -> None:
    """The last block of an odd number is recomputed while all others are in memory, which hooks miss."""
    config = CONFIGS[name]
    config = replace(config, decoder=replace(config.decoder, n_layers=n_layers))  # type: ignore[type-var]
    measured = saved_bytes(config, torch.float32, checkpointing=2)
    last = _blocks(config)[0] * (n_layers % 2)
    expected = predicted(config, Kernels(on_cpu=True), checkpointing=2)
    assert expected - last == measured
    assert expected < predicted(config, Kernels(on_cpu=True))


def _blocks(config: TransformerConfig) -> list[int]:
    """Return the bytes that one more block of each stack adds."""
    found = []
    for side in ("encoder", "decoder"):
        stack = getattr(config, side)
        if stack is not None:
            more = replace(config, **{side: replace(stack, n_layers=stack.n_layers + 1)})
            found.append(predicted(more, Kernels(on_cpu=True)) - predicted(config, Kernels(on_cpu=True)))
    return found


def test_activations_on_a_gpu() -> None:
    """Dropout masks are bytes, attention with dropout is fused, and RMSNorm keeps only its input."""
    plain, gpu, cpu = CONFIGS["gpt"], Kernels(), Kernels(on_cpu=True)
    n_masked = SHAPE.n_rows * SHAPE.n_tokens * plain.d_model * 4  # two blocks of two sublayers
    dropped = replace(plain, residual_dropout=0.1)
    assert predicted(dropped, gpu) - predicted(plain, gpu) == n_masked
    assert predicted(dropped, cpu) - predicted(plain, cpu) == 4 * n_masked
    assert predicted(plain, gpu) == predicted(plain, cpu) == predicted(replace(plain, attention_dropout=0.1), gpu)
    n_normed = SHAPE.n_rows * SHAPE.n_tokens * 16 * 5 * 4
    llama = replace(CONFIGS["llama"], decoder=replace(CONFIGS["llama"].decoder, n_kv_heads=0))
    assert predicted(llama, cpu) - predicted(llama, gpu) == n_normed


def test_a_gpu_repeats_shared_heads_without_a_fused_kernel_for_them() -> None:
    """Then it keeps as many keys and values as without sharing, and also the shared keys, which have the storage of the
    queries; a CPU keeps them shared."""

    def kept_beside_all_heads(config: TransformerConfig, kernels: Kernels) -> int:
        alone = replace(config, decoder=replace(config.decoder, n_kv_heads=0))
        return predicted(config, kernels) - predicted(alone, kernels)

    config, stack = CONFIGS["llama"], CONFIGS["llama"].decoder
    assert stack is not None and (stack.n_heads, stack.n_kv_heads) == (4, 2)
    saved = SHAPE.n_rows * SHAPE.n_tokens * (4 - 2) * 2 * stack.d_head * stack.n_layers  # elements of keys and values
    windowed = CONFIGS["window"]
    assert kept_beside_all_heads(config, Kernels(on_cpu=True)) == -4 * saved
    assert kept_beside_all_heads(config, Kernels(half=True)) == -2 * saved
    assert kept_beside_all_heads(config, Kernels()) == 4 * saved // 2
    assert kept_beside_all_heads(windowed, Kernels(half=True)) == 2 * saved // 2
    assert kept_beside_all_heads(windowed, Kernels(on_cpu=True)) == -4 * saved


def test_a_kernel_without_shared_heads_keeps_what_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, measured: the repeated keys and values, and the shared keys."""
    config, stack = CONFIGS["llama"], CONFIGS["llama"].decoder
    assert stack is not None
    measured = [saved_bytes(config, torch.float32)]
    monkeypatch.setattr(attention, "_kernel_takes_groups", lambda *_: False)
    measured.append(saved_bytes(config, torch.float32))
    per_layer = SHAPE.n_rows * SHAPE.n_tokens * stack.d_head * (2 * (4 - 2) + 2)
    assert measured[1] - measured[0] == 4 * per_layer * stack.n_layers


@pytest.mark.parametrize("name", RECURRENT)
def test_activations_of_recurrent_models_are_estimated(name: str) -> None:
    """The estimate is within 20 % of the single steps in double precision, the only path of a CPU for that dtype."""
    config = RECURRENT[name]
    config = replace(
        config,
        d_embedding=4 * config.d_embedding,
        d_encoder=4 * config.d_encoder,
        d_decoder=4 * config.d_decoder,
        vocab_size=100,
    )
    measured = saved_bytes(config, torch.float64) / 2
    assert predicted(config, Kernels(on_cpu=True)) == about(measured, percent=20)
