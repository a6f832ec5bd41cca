"""Properties of every kind of model, over configurations that cover every axis."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from configs import BY_TOKEN, CAUSAL, CONFIGS, CROSS, ENCODERS, Recorder, random_ids, random_inputs, random_model
from glassformer.config.transformer import RotaryPositions
from glassformer.models.build import build_model
from tolerances import assert_close

EVERY = pytest.mark.parametrize("name", CONFIGS)


def close(ours: Tensor, expected: Tensor) -> None:
    """Check that two tensors are equal up to the rounding of float64."""
    assert_close(ours, expected)


def stack_of(name: str) -> str:
    return "decoder" if CONFIGS[name].decoder else "encoder"


@pytest.mark.parametrize("name", [name for name in CAUSAL if name in BY_TOKEN])
def test_a_changed_token_alters_nothing_before_it(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model)
    before = model(inputs.token_ids, **inputs.others)
    for t in (1, 4, 8):
        changed = inputs.token_ids.clone()
        changed[:, t] = (changed[:, t] + 1) % model.config.vocab_size
        after = model(changed, **inputs.others)
        close(after[:, :t], before[:, :t])
        assert (after[:, t] - before[:, t]).abs().max() > 1e-6


@EVERY
def test_gradients_reach_exactly_the_visible_tokens(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model)
    stack, n_tokens, t = stack_of(name), inputs.token_ids.shape[1], 4
    leaf: dict[str, Tensor] = {}
    tap = Recorder({f"{stack}.embeddings": lambda x: leaf.setdefault("x", x.detach().requires_grad_())})
    hidden = model.hidden(inputs.token_ids, **inputs.others, tap=tap)
    # A random direction: the sum of a normed vector's entries has no gradient.
    direction = torch.linspace(-1, 2, hidden.shape[-1], dtype=torch.float64).cos()
    (hidden[:, t] @ direction).sum().backward()
    sees = leaf["x"].grad.abs().amax(dim=(0, 2)) > 0
    pattern, n_layers = getattr(CONFIGS[name], stack).window_pattern, getattr(CONFIGS[name], stack).n_layers
    reach = n_tokens
    if pattern and 0 not in pattern:  # each block adds its own window
        reach = sum(pattern[i % len(pattern)] - 1 for i in range(n_layers))
    expected = torch.arange(n_tokens).sub(t).abs() <= reach
    if stack == "decoder":
        expected &= torch.arange(n_tokens) <= t
    assert torch.equal(sees, expected)


@EVERY
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(name: str, side: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model, n_rows=1)
    expected = model(inputs.token_ids, **inputs.others)

    def padded(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        junk, real = random_ids(2, 1, n, seed=9), torch.ones_like(x, dtype=torch.bool)
        parts = [(x, real), (junk, torch.zeros_like(junk, dtype=torch.bool))]
        ids, masks = zip(*(parts if side == "right" else parts[::-1]), strict=True)
        return torch.cat(ids, 1), torch.cat(masks, 1)

    token_ids, mask = padded(inputs.token_ids, 3)
    others = dict(inputs.others)
    if "token_types" in others:
        others["token_types"], _ = padded(others["token_types"], 3)
    if "source_ids" in others:
        others["source_ids"], others["source_attention_mask"] = padded(others["source_ids"], 4)
    logits = model(token_ids, mask, **others)
    assert logits.isfinite().all()
    close(logits if CONFIGS[name].reads_whole_sequence else logits[mask][None], expected)


@EVERY
def test_rows_of_a_batch_are_independent(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model, n_rows=3)
    together = model(inputs.token_ids, **inputs.others)
    for row in range(3):
        alone = inputs.rows(slice(row, row + 1))
        close(model(alone.token_ids, **alone.others), together[row : row + 1])


@pytest.mark.parametrize("name", BY_TOKEN)
def test_packed_documents_equal_separate_documents(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model, n_rows=1, n_tokens=10)
    lengths = (4, 1, 5)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    document_ids = torch.arange(3).repeat_interleave(torch.tensor(lengths))[None]
    packed = model(inputs.token_ids, **inputs.others, positions=positions, document_ids=document_ids)
    for i in range(3):
        own = document_ids[0] == i
        others = {k: x if k == "source_ids" else x[:, own] for k, x in inputs.others.items()}
        close(packed[:, own], model(inputs.token_ids[:, own], **others))


@EVERY
def test_a_tap_that_changes_nothing_changes_nothing(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model)
    tap = Recorder()
    close(model(inputs.token_ids, **inputs.others, tap=tap), model(inputs.token_ids, **inputs.others))
    expected = set()
    for stack_name in ("encoder", "decoder"):
        stack = getattr(CONFIGS[name], stack_name)
        if stack is None:
            continue
        expected |= {f"{stack_name}.embeddings", f"{stack_name}.final"}
        crosses = stack_name == "decoder" and name in CROSS
        for i in range(stack.n_layers):
            block = f"{stack_name}.blocks.{i}."
            expected.add(f"{block}residual")
            for attention in ("self_attn", "cross_attn") if crosses else ("self_attn",):
                steps = ("query", "key", "value", "scores", "weights", "context")
                expected |= {f"{block}{attention}.{step}" for step in steps}
    assert set(tap.seen) == expected


@EVERY
def test_activation_checkpointing_gives_the_same_gradients(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model)
    gradients = []
    for recompute in (0, 1, 2):
        for stack in (model.encoder, model.decoder):
            if stack is not None:
                stack.activation_checkpointing = recompute
        model.train().zero_grad()
        model(inputs.token_ids, **inputs.others).square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for parameter, grad in gradients[0].items():
        assert grad is not None, f"{parameter} does not contribute to the logits"
        close(gradients[1][parameter], grad)
        close(gradients[2][parameter], grad)


@EVERY
def test_meta_device_build_has_the_same_shapes(name: str) -> None:
    real, meta = build_model(CONFIGS[name]), build_model(CONFIGS[name], device="meta")
    assert {k: x.shape for k, x in meta.state_dict().items()} == {k: x.shape for k, x in real.state_dict().items()}
    assert all(x.is_meta for x in [*meta.parameters(), *meta.buffers()])
    assert meta.n_parameters() == real.n_parameters()


@EVERY
def test_copies_and_reloaded_weights_give_equal_logits(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model)
    expected = model(inputs.token_ids, **inputs.others)
    reloaded = random_model(name, seed=5)
    assert not torch.equal(reloaded(inputs.token_ids, **inputs.others), expected)
    reloaded.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), reloaded):
        assert torch.equal(other(inputs.token_ids, **inputs.others), expected)
        assert other.n_parameters() == model.n_parameters()


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_refuse_a_source(name: str) -> None:
    model = random_model(name)
    with pytest.raises(ValueError, match="source_ids"):
        model(torch.zeros(1, 2, dtype=torch.long), source_ids=torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize("name", CROSS)
def test_both_stacks_need_a_source(name: str) -> None:
    with pytest.raises(ValueError, match="source_ids"):
        random_model(name)(torch.zeros(1, 2, dtype=torch.long))


@EVERY
def test_forward_applies_the_head_to_the_hidden_states(name: str) -> None:
    model = random_model(name)
    inputs = random_inputs(model)
    hidden = model.hidden(inputs.token_ids, **inputs.others)
    assert hidden.shape == (*inputs.token_ids.shape, model.config.d_model)
    assert torch.equal(model.head(hidden), model(inputs.token_ids, **inputs.others))


def test_half_precision_keeps_exact_angles() -> None:
    """A model cast to half precision computes rotary angles in fp32: rounded angles would be wrong for far tokens."""
    for name in ("llama", "alibi"):
        model = build_model(CONFIGS[name])
        exact = {k: x.clone() for k, x in model.named_buffers()}
        model.to(torch.bfloat16)
        assert exact and all(torch.equal(x, exact[k]) for k, x in model.named_buffers())


def test_autocast_runs_every_norm_without_a_warning() -> None:
    config = replace(CONFIGS["rotary_partial_qk_norm"], positions=RotaryPositions())
    model = build_model(config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(random_inputs(model).token_ids).isfinite().all()
