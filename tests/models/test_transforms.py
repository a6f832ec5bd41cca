"""Low-rank adaptation starts without effect and trains only its updates; loaded weights are bit-equal."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from configs import BERT, CONFIGS, GPT, LLAMA, PAPER, RECURRENT, random_inputs, random_model, randomise
from glassformer.common.errors import UserError
from glassformer.config.transformer import PositionHead, TokenHead
from glassformer.models.build import build_model
from glassformer.models.transforms import (
    LoraLinear,
    add_lora,
    merge_lora,
    take_weights,
)
from glassformer.store.model_directory import weights_of
from tolerances import assert_close, sampled

RANK = 3
ADAPTED: dict[str, tuple[str, ...]] = {
    "gpt": ("*.q_proj", "*.v_proj"),
    "llama": ("*_proj", "output.proj"),
    "fused_qkv": ("*.qkv_proj", "decoder.blocks.1.ff.*"),
    "bert": ("*.ff.up_proj", "output.transform.dense"),
    "tagger": ("*_proj", "output.proj"),
    "paper": ("*.cross_attn.*", "encoder.*.out_proj"),
    "bahdanau": ("decoder.*", "bridge.hidden.0"),
    "luong": ("decoder.combine", "*.k_proj"),
}


def logits(model: Any) -> Tensor:
    inputs = random_inputs(model)
    return model(inputs.token_ids, **inputs.others)


def copies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def assert_unchanged(model: nn.Module, before: dict[str, Tensor]) -> None:
    after = weights_of(model)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


# Low-rank adaptation


@pytest.mark.parametrize("name", ADAPTED)
def test_adapt_then_train_then_merge(name: str) -> None:
    model = random_model(name).requires_grad_(False)  # torch may choose another kernel when it needs gradients
    plain, before = logits(model), copies(weights_of(model))

    adapted = add_lora(model, ADAPTED[name], RANK, alpha=6.0)
    assert torch.equal(logits(model), plain)
    assert_unchanged(model, before)
    own = {f"{layer}.{which}" for layer in adapted for which in ("lora_a", "lora_b")}
    assert set(weights_of(model)) == set(before) | own

    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, weight_decay=0.5)
    for _ in range(2):  # B is zero at first, so A has no gradient
        optimizer.zero_grad()
        logits(model).square().sum().sqrt().backward()
        assert {name for name, p in model.named_parameters() if p.grad is not None} == own
        optimizer.step()
    learned = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learned)
    assert_unchanged(model, before)

    trained = logits(model)
    assert (trained - plain).abs().max() > 1e-3
    assert merge_lora(model) == len(adapted)
    assert_close(logits(model), trained)
    assert not any(isinstance(module, LoraLinear) for module in model.modules())
    assert list(weights_of(model)) == list(before)
    assert all(p.requires_grad for p in map(model.get_parameter, (f"{layer}.weight" for layer in adapted)))
    assert merge_lora(model) == 0


def test_an_adapted_layer_by_hand() -> None:
    torch.manual_seed(0)
    base = nn.Linear(4, 5).double()
    layer = LoraLinear(base, rank=2, alpha=3.0, dropout=0.0)
    randomise(layer)
    x = torch.randn(6, 4, dtype=torch.float64)
    by_hand = x @ base.weight.T + base.bias + 3.0 / 2 * (x @ layer.lora_a.T) @ layer.lora_b.T
    assert_close(layer(x), by_hand)
    assert_close(layer.merged().weight, base.weight + 1.5 * layer.lora_b @ layer.lora_a)


def test_a_merged_model_in_single_precision_equals_the_adapted_one() -> None:
    model = random_model(GPT, dtype=torch.float32)
    add_lora(model, ["*_proj"], RANK, alpha=6.0)
    randomise(model)
    adapted = logits(model)
    merge_lora(model)
    assert_close(logits(model), adapted)


@pytest.mark.parametrize("d_in", [256, 768, 4096])
@pytest.mark.parametrize("rank", [1, 8, 64])
def test_the_scale_of_a_new_update_is_independent_of_width_and_rank(d_in: int, rank: int) -> None:
    """For standard normal x, A x has a standard deviation of 1 / √3: one learning rate fits every width."""
    torch.manual_seed(0)
    layer = LoraLinear(nn.Linear(d_in, 3), rank, alpha=1.0, dropout=0.0)
    assert layer.lora_a.abs().max() <= d_in**-0.5 and layer.lora_b.count_nonzero() == 0
    low = torch.randn(4000, d_in) @ layer.lora_a.T
    assert low.std().item() == sampled(3**-0.5, min(4000, d_in) * rank)


def test_a_new_update_is_drawn_as_in_peft() -> None:
    """The rule is kaiming_uniform_ with a = √5, as in `peft.tuners.lora.layer` and loralib, from the same seed."""
    torch.manual_seed(0)
    layer = LoraLinear(nn.Linear(40, 3, device="meta").to_empty(device="cpu"), rank=5, alpha=1.0, dropout=0.0)
    torch.manual_seed(0)
    expected = nn.init.kaiming_uniform_(torch.empty(5, 40), a=5**0.5)
    assert_close(layer.lora_a.detach(), expected)


def test_updates_of_older_versions_load_unchanged() -> None:
    """Older versions drew A from N(0, 1 / rank): the weights of a file replace the drawn ones."""
    old = random_model(GPT)
    add_lora(old, ["*_proj"], RANK, alpha=6.0)
    for name, parameter in old.named_parameters():
        if name.endswith("lora_a"):
            nn.init.normal_(parameter, std=RANK**-0.5)
    new = random_model(GPT, seed=1)
    add_lora(new, ["*_proj"], RANK, alpha=6.0)
    new.load_state_dict(old.state_dict())
    assert_unchanged(new, weights_of(old))
    assert torch.equal(logits(new), logits(old))


def test_dropout_acts_on_the_update_in_training_only() -> None:
    torch.manual_seed(0)
    base = nn.Linear(4, 5)
    x = torch.ones(3, 4)
    layer = LoraLinear(base, rank=2, alpha=2.0, dropout=0.5)
    assert torch.equal(layer(x), base(x))
    randomise(layer.requires_grad_(True))
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert not LoraLinear(base.eval(), rank=2, alpha=2.0, dropout=0.5).training


@pytest.mark.parametrize(("pattern", "n_in", "n_out"), [("*.q_proj", 16, 16), ("*.up_proj", 16, 24), ("*ff.*", 16, 24)])
def test_trained_parameters_are_rank_times_sum_of_widths(pattern: str, n_in: int, n_out: int) -> None:
    model = random_model(GPT)
    n_layers = len(add_lora(model, [pattern, pattern], RANK, alpha=1.0))
    assert n_layers == (4 if pattern == "*ff.*" else 2)
    n_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert n_trained == n_layers * RANK * (n_in + n_out)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["*.q_proj", "*.qq_proj"], r"no linear layer matches \*\.qq_proj; similar: .*q_proj"),
        (["decoder.embeddings.tokens"], "no linear layer matches decoder.embeddings.tokens"),
        (["output.proj"], "tied to the embeddings"),
    ],
)
def test_what_cannot_be_adapted_is_refused_and_changes_nothing(patterns: list[str], message: str) -> None:
    model = random_model(GPT)
    names = list(weights_of(model))
    with pytest.raises(UserError, match=message):
        add_lora(model, patterns, RANK, alpha=1.0)
    assert list(weights_of(model)) == names
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_second_adaptation_or_rank_0_is_refused() -> None:
    model = random_model(GPT)
    add_lora(model, ["*.q_proj"], RANK, alpha=1.0)
    with pytest.raises(UserError, match="already adapted"):
        add_lora(model, ["*_proj"], RANK, alpha=1.0)
    with pytest.raises(ValueError, match="rank"):
        LoraLinear(nn.Linear(2, 2), rank=0, alpha=1.0, dropout=0.0)


# Loading weights of another model


@pytest.mark.parametrize("name", [*CONFIGS, *RECURRENT])
def test_a_model_takes_all_weights_of_an_equal_model(name: str) -> None:
    stored = weights_of(random_model(name))
    model = random_model(name, seed=1)
    taken = take_weights(model, stored)
    assert sorted(taken.taken) == sorted(weights_of(model))
    assert not taken.new and not taken.left and not taken.extended
    assert str(taken) == f"loaded: {len(stored)} tensors"
    assert_unchanged(model, stored)


@pytest.mark.parametrize(
    ("config", "extended"),
    [
        (GPT, ["decoder.embeddings.tokens.weight"]),
        (LLAMA, ["decoder.embeddings.tokens.weight", "output.proj.weight"]),
        (BERT, ["encoder.embeddings.tokens.weight", "output.bias"]),
        (CONFIGS["bert_narrow_table"], ["encoder.embeddings.tokens.weight", "output.bias"]),
        (CONFIGS["token_types"], ["decoder.embeddings.tokens.weight", "output.bias"]),
        (CONFIGS["tagger"], ["encoder.embeddings.tokens.weight"]),
        (PAPER, ["encoder.embeddings.tokens.weight"]),
        (CONFIGS["two_vocabularies"], ["decoder.embeddings.tokens.weight"]),
        (CONFIGS["bart"], ["encoder.embeddings.tokens.weight", "output.bias"]),
        (RECURRENT["bahdanau"], ["encoder.tokens.weight", "decoder.tokens.weight", "output.proj.weight"]),
        (RECURRENT["elman"], ["decoder.tokens.weight", "output.proj.weight"]),
        (RECURRENT["before_scaled_dot"], ["encoder.tokens.weight"]),
    ],
)
def test_a_larger_vocabulary_keeps_the_old_rows_exactly(config: Any, extended: list[str]) -> None:
    model = random_model(config)
    stored = weights_of(model)
    larger = random_model(replace(config, vocab_size=23), seed=1)
    own = copies(weights_of(larger))
    taken = take_weights(larger, stored)
    assert sorted(taken.extended) == sorted(extended)
    assert not taken.new and not taken.left and taken.taken == list(own)
    for name, tensor in weights_of(larger).items():
        n_old = len(stored[name])
        assert torch.equal(tensor[:n_old], stored[name])
        assert torch.equal(tensor[n_old:], own[name][n_old:])
    inputs = random_inputs(model)
    old = model(inputs.token_ids, **inputs.others)
    new = larger(inputs.token_ids, **inputs.others)[..., : old.shape[-1]]
    assert_close(new, old)


def test_a_smaller_vocabulary_takes_no_rows() -> None:
    model = random_model(GPT, seed=1)
    before = copies(weights_of(model))
    table = "decoder.embeddings.tokens.weight"
    taken = take_weights(model, weights_of(random_model(replace(GPT, vocab_size=23))))
    assert taken.new == taken.left == [table]
    assert_unchanged(model, {table: before[table]})


def test_a_different_head_is_new() -> None:
    """The language model's head is left, the tagger's head is new, and the rest is taken."""
    tagger = build_model(CONFIGS["tagger"]).double()
    taken = take_weights(tagger, weights_of(random_model(BERT)))
    assert taken.new == ["output.proj.weight", "output.proj.bias"]
    assert sorted(taken.left) == [
        "output.bias",
        *(f"output.transform.{part}" for part in ("dense.bias", "dense.weight", "norm.bias", "norm.weight")),
    ]
    assert str(taken).splitlines()[1] == "new: output.proj.weight, output.proj.bias"


def test_rows_of_labels_are_never_loaded_as_rows_of_tokens() -> None:
    """A tagger's head with fewer rows than the vocabulary, or than another head's labels, is not loaded."""
    five = weights_of(random_model(CONFIGS["tagger"]))
    for config in (replace(BERT, head=PositionHead(7)), replace(BERT, head=TokenHead(), tie_output=False)):
        taken = take_weights(random_model(config, seed=1), five)
        assert "output.proj.weight" in taken.new and "output.proj.weight" in taken.left
        assert not taken.extended


def test_other_widths_and_depths_take_matching_weights() -> None:
    deeper = random_model(replace(GPT, decoder=replace(GPT.decoder, n_layers=3)), seed=1)
    stored = weights_of(random_model(GPT))
    taken = take_weights(deeper, stored)
    assert taken.new == [name for name in weights_of(deeper) if name.startswith("decoder.blocks.2.")]
    assert taken.taken == list(stored) and not taken.left
    assert str(taken).splitlines()[1:] == [f"new: decoder.blocks.* ({len(taken.new)})"]
    other = random_model(replace(GPT, d_model=20, decoder=replace(GPT.decoder, d_head=5)), seed=1)
    taken = take_weights(other, stored)
    assert set(taken.taken) == {f"decoder.blocks.{i}.ff.up_proj.bias" for i in range(2)}
    assert set(taken.left) == set(stored) - set(taken.taken)


def test_a_longer_position_table_is_not_extended() -> None:
    longer = random_model(replace(GPT, max_len=30), seed=1)
    taken = take_weights(longer, weights_of(random_model(GPT)))
    assert taken.new == taken.left == ["decoder.embeddings.positions.table.weight"]
