"""Experts of Mixtral and Qwen3-MoE: router logits, the balance loss, and what the families cannot represent."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import late
from configs import CONFIGS, LLAMA
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families.llama import MIXTRAL
from glassformer.apps.interop.hf import choose_family
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.common.errors import UserError
from glassformer.config.transformer import BalanceBias, BalanceLoss, Experts, RotaryPositions
from glassformer.inspection.capture import capture_tensors
from glassformer.nn.experts import balance_loss
from glassformer.training.checks import check_new_run
from interop.checkpoints import VOCAB, imported, model_directory
from runs import tiny_run, write_text
from tolerances import NETWORK, assert_close

transformers = late.optional("transformers")

SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "intermediate_size": 20, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "Mixtral": ("MixtralForCausalLM", {"num_local_experts": 5}),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", {"num_experts": 5, "moe_intermediate_size": 12, "norm_topk_prob": True}),
}


@pytest.mark.parametrize("name", CLASSES)
def test_router_logits_and_balance_loss_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    architecture, others = CLASSES[name]
    cls = getattr(transformers, architecture)
    both = imported(cls(cls.config_class(**SIZES, **others, num_experts_per_tok=2)), tmp_path)
    ids = torch.randint(VOCAB, (3, 7), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(7) < torch.tensor([[7], [4], [6]])
    with torch.no_grad():
        theirs = both.theirs(input_ids=ids, attention_mask=keep.long(), output_router_logits=True)
    inputs = {"token_ids": ids, "attention_mask": keep}
    ours = capture_tensors(both.network, inputs, [f"decoder.blocks.{i}.ff.router.proj" for i in range(2)])
    for (_, mine), other in zip(sorted(ours.items()), theirs.router_logits, strict=True):
        assert_close(mine.flatten(0, 1)[keep.flatten()], other[keep.flatten()], terms=NETWORK)
    one_layer = theirs.router_logits[:1]
    load_balancing_loss = transformers.models.mixtral.modeling_mixtral.load_balancing_loss_func
    p = one_layer[0].softmax(dim=-1)
    active = torch.zeros_like(p).scatter(-1, p.topk(2).indices, 1.0)
    assert_close(balance_loss(p, active, keep.flatten()), load_balancing_loss(one_layer, 5, 2, keep.long()))


def test_one_active_expert_with_normalised_weights_is_imported_and_not_trained(tmp_path: Path) -> None:
    cls = transformers.MixtralForCausalLM
    both = imported(cls(cls.config_class(**SIZES, num_local_experts=4, num_experts_per_tok=1)), tmp_path)
    both.assert_same()
    assert both.network.config.experts == Experts(4, 1, balance=BalanceLoss(0.001))
    run = tiny_run(write_text(tmp_path))
    with pytest.raises(UserError, match="the constant weight 1, from which the router cannot learn"):
        check_new_run(replace(run, model=replace(run.model, experts=Experts(4, 1))), tmp_path / "run")


def test_the_weight_of_the_balance_loss_is_kept(tmp_path: Path) -> None:
    cls = transformers.MixtralForCausalLM
    config = cls.config_class(**SIZES, num_local_experts=4, router_aux_loss_coef=0.5)
    both = imported(cls(config), tmp_path)
    assert both.network.config.experts == Experts(4, 2, balance=BalanceLoss(0.5))


@pytest.mark.parametrize("rope", [{}, {"rope_parameters": None}, {"rope_parameters": {"rope_type": "default"}}])
def test_a_missing_base_is_that_of_mixtral(rope: dict[str, Any]) -> None:
    table = SIZES | {"max_position_embeddings": 40, "num_local_experts": 4} | copy.deepcopy(rope)
    read = MIXTRAL.read(HFConfig(table, "config.json"), "MixtralForCausalLM")
    theirs = transformers.MixtralConfig(**table)
    assert read.positions == RotaryPositions(base=theirs.rope_parameters["rope_theta"])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(LLAMA, experts=Experts(4, 2, balance=BalanceBias())), "model.experts: expected none, got a table"),
        (CONFIGS["experts"], "model.experts: expected none, got a table"),
    ],
)
def test_a_model_that_no_family_represents_is_refused(config: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_family(replace(config, vocab_size=VOCAB))


def test_a_bias_of_the_choice_is_a_misfit_of_mixtral() -> None:
    config = replace(LLAMA, vocab_size=VOCAB, experts=Experts(4, 2, balance=BalanceBias()))
    assert MIXTRAL.misfits(config) == ["model.experts.balance: expected none, got bias"]


@pytest.mark.parametrize(("normalize", "family"), [(True, "Mixtral"), (False, "Qwen3-MoE")])
def test_the_first_family_that_fits_is_chosen(normalize: bool, family: str) -> None:
    config = replace(LLAMA, experts=Experts(4, 2, normalize=normalize), qk_norm=not normalize)
    assert choose_family(config).name == family


@pytest.mark.parametrize("to", ["onnx", "ct2", "gguf"])
def test_other_formats_refuse_experts(to: Any, tmp_path: Path) -> None:
    config = replace(LLAMA, experts=Experts(4, 2))
    with pytest.raises(UserError, match=r"experts|Mixtral"):
        export(model_directory(config, tmp_path / "ours"), tmp_path / "theirs", to=to)
