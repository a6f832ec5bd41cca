"""The public behaviour of the model: the choices of the constructor, the effects of a tap, refused inputs."""

from dataclasses import replace

import pytest
import torch

from configs import CONFIGS, GPT, LLAMA, PAPER, Recorder, random_ids, random_inputs, random_model
from glassformer.config.transformer import Stack
from glassformer.models.build import build_model
from tolerances import assert_close, is_close


def test_the_stacks_determine_the_kind_of_model() -> None:
    gpt, bert, paper = (build_model(CONFIGS[name]) for name in ("gpt", "bert", "paper"))
    assert gpt.encoder is None and gpt.decoder is not None
    assert bert.decoder is None and bert.encoder is not None
    assert paper.encoder is not None and all(block.cross_attn is not None for block in paper.decoder.blocks)
    assert all(block.cross_attn is None for block in [*gpt.decoder.blocks, *paper.encoder.blocks])


def test_windows_repeat_over_the_layers() -> None:
    config = replace(GPT, decoder=Stack(5, 4, d_ff=8, window_pattern=(2, 3, 0)))
    assert build_model(config).decoder.windows == (2, 3, 0, 2, 3)
    assert build_model(GPT).decoder.windows == (0, 0)


def test_source_and_target_have_separate_or_shared_tables() -> None:
    model = build_model(CONFIGS["two_vocabularies"])
    assert model.encoder.embeddings.tokens.num_embeddings == 13
    assert model.decoder.embeddings.tokens.num_embeddings == 19
    shared = build_model(PAPER)
    assert shared.encoder.embeddings.tokens is shared.decoder.embeddings.tokens


def test_each_stack_has_its_own_relative_positions() -> None:
    """Encoder buckets are bidirectional, decoder buckets causal, and cross-attention has no score bias."""
    model = build_model(CONFIGS["t5"])
    assert model.encoder.score_bias.bidirectional and not model.decoder.score_bias.bidirectional
    assert model.encoder.score_bias.table is not model.decoder.score_bias.table
    real, tap = random_model("t5"), Recorder()
    inputs = random_inputs(real)
    real(inputs.token_ids, **inputs.others, tap=tap)
    seen = tap.seen
    for attention, biased in (("self_attn", True), ("cross_attn", False)):
        at = f"decoder.blocks.0.{attention}."
        raw = seen[f"{at}query"] @ seen[f"{at}key"].mT  # attention_scale is 1
        assert is_close(seen[f"{at}scores"], raw) is not biased


def test_rotary_angles_never_reach_cross_attention() -> None:
    model, tap = random_model(replace(PAPER, positions=LLAMA.positions)), Recorder()
    inputs = random_inputs(model)
    model(inputs.token_ids, **inputs.others, tap=tap)
    cross = model.decoder.blocks[0].cross_attn
    key, _ = cross.project_memory(tap.seen["encoder.final"])
    assert_close(tap.seen["decoder.blocks.0.cross_attn.key"], key)


def test_a_tap_can_patch_one_run_into_another() -> None:
    """The residual stream of a clean run, patched into a run on other tokens, gives the clean run's logits."""
    model, clean = random_model("llama"), Recorder()
    token_ids = random_ids(19, 2, 6)
    logits = model(token_ids, tap=clean)
    name = "decoder.blocks.0.residual"
    patch = Recorder({name: lambda _: clean.seen[name]})
    other = (token_ids + 1) % 19
    assert not is_close(model(other), logits)
    assert_close(model(other, tap=patch), logits)


def test_a_tap_can_ablate_one_head() -> None:
    model = random_model("gpt")
    token_ids = random_ids(19, 2, 6)
    name = "decoder.blocks.1.self_attn.context"

    def without_head_2(context: torch.Tensor) -> torch.Tensor:
        return context.index_fill(1, torch.tensor([2]), 0.0)

    ablated = model(token_ids, tap=Recorder({name: without_head_2}))
    with torch.no_grad():
        model.decoder.blocks[1].self_attn.out_proj.weight[:, 8:12] = 0  # the columns of head 2
    assert_close(model(token_ids), ablated)


def test_a_tap_receives_the_steps_of_generation() -> None:
    model, whole, stepped = random_model("paper"), Recorder(), Recorder()
    inputs = random_inputs(model)
    model(inputs.token_ids, **inputs.others, tap=whole)
    _, state = model.step(inputs.token_ids[:, :8], model.start(2, 9, **inputs.others))
    model.step(inputs.token_ids[:, 8:], state, tap=stepped)
    for name in ("self_attn.weights", "cross_attn.weights"):
        path = f"decoder.blocks.1.{name}"
        assert_close(stepped.seen[path], whole.seen[path][:, :, 8:])


class EmptyTap(dict):  # type: ignore[type-arg]
    """A tap that is falsy: only None means no tap."""

    def __init__(self, prefix: str, names: list[str]) -> None:
        self.prefix, self.names = prefix, names

    def __call__(self, name: str, x: torch.Tensor) -> torch.Tensor:
        self.names.append(self.prefix + name)
        return x

    def scope(self, name: str) -> "EmptyTap":
        return EmptyTap(f"{self.prefix}{name}.", self.names)


def test_a_falsy_tap_is_used() -> None:
    model, reference = random_model("paper"), Recorder()
    inputs = random_inputs(model)
    tap = EmptyTap("", [])
    assert not tap
    model(inputs.token_ids, **inputs.others, tap=tap)
    model(inputs.token_ids, **inputs.others, tap=reference)
    assert tap.names == list(reference.seen)


def test_a_source_without_an_encoder_is_refused() -> None:
    ids = random_ids(19, 1, 3)
    with pytest.raises(ValueError, match="one stack only"):
        random_model("gpt")(ids, source_ids=ids)
    with pytest.raises(ValueError, match="n_token_types"):
        random_model("gpt")(ids, token_types=ids)


def test_parameters_are_counted_once() -> None:
    """Count tokens 19·16, positions 24·16, 2 blocks of 4·(16² + 16) + 2·16·24 + 24 + 16 + 2·32, a final norm."""
    block = 4 * (16**2 + 16) + 2 * 16 * 24 + 24 + 16 + 2 * 32
    assert build_model(GPT).n_parameters() == 19 * 16 + 24 * 16 + 2 * block + 32
    assert build_model(replace(GPT, tie_output=False)).n_parameters() == build_model(GPT).n_parameters() + 19 * 16


@pytest.mark.parametrize("name", ["gpt", "bert", "paper"])
def test_recomputed_blocks_repeat_their_dropout(name: str) -> None:
    """Activation checkpointing with dropout gives the same loss and gradients for the same seed."""
    dropouts = dict.fromkeys(("embedding_dropout", "residual_dropout", "attention_dropout", "ff_dropout"), 0.3)
    model = random_model(replace(CONFIGS[name], **dropouts)).train()
    inputs = random_inputs(model)
    results = []
    for recompute in (0, 1, 2):
        for stack in (model.encoder, model.decoder):
            if stack is not None:
                stack.activation_checkpointing = recompute
        model.zero_grad()
        torch.manual_seed(5)
        loss = model(inputs.token_ids, **inputs.others).square().mean()
        torch.manual_seed(6)  # the backward must not depend on the generator's later state
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for recomputed in results[1:]:
        assert_close(recomputed, results[0])
