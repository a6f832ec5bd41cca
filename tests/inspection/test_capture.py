"""Captured tensors equal those of the fused pass and of transformers; hooks read and replace them everywhere."""

import inspect
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from configs import CONFIGS, random_model
from glassformer.common.errors import UserError
from glassformer.config.recurrent import AttendAfter, AttendBefore, RecurrentConfig
from glassformer.inspection.capture import STANDARD, Trace, capture, capture_tensors, model_hooks
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import attention_reference
from glassformer.tasks.reporting import Outcome
from interop.checkpoints import imported, randomise
from tolerances import NETWORK, assert_close, is_close

SIZES: dict[str, Any] = {"d_embedding": 6, "d_encoder": 4, "d_decoder": 8, "vocab_size": 13}


def inputs_of(network: nn.Module) -> dict[str, Tensor]:
    config = network.config
    found = {"token_ids": torch.randint(3, config.vocab_size, (1, 7))}
    if config.is_encoder_decoder:
        found["source_ids"] = torch.randint(3, config.encoder_vocab_size, (1, 5))
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_trace_equals_the_fused_pass(name: str) -> None:
    network = build_model(CONFIGS[name]).eval()
    randomise(network)
    inputs = inputs_of(network)
    found = capture_tensors(network, inputs, ["*"])
    with torch.no_grad():
        assert_close(found["logits"], network(**inputs), terms=NETWORK)
        assert_close(found["hidden"], network.hidden(**inputs), terms=NETWORK)
    assert network.state_dict().keys() == build_model(CONFIGS[name]).state_dict().keys()
    assert not {"forward", "hidden", "encode", "step"} & network.__dict__.keys(), "the methods are restored"


def test_the_parts_of_a_block_add_up() -> None:
    network = build_model(CONFIGS["gpt"]).eval()
    found = capture_tensors(network, inputs_of(network))
    x = found["decoder.embeddings"]
    for block in ("decoder.blocks.0", "decoder.blocks.1"):
        x = x + found[f"{block}.self_attn"] + found[f"{block}.ff"]
        assert_close(found[f"{block}.residual"], x)
        weights, value = found[f"{block}.self_attn.weights"], found[f"{block}.self_attn.value"]
        assert_close(found[f"{block}.self_attn.context"], weights @ value)
    ff = network.decoder.blocks[1].ff
    assert_close(ff.down_proj(found["decoder.blocks.1.ff.activations"]), found["decoder.blocks.1.ff"])


@pytest.mark.parametrize("attention", [AttendBefore(), AttendAfter("general", input_feeding=True)])
def test_the_steps_of_a_recurrent_model_are_joined(attention: AttendBefore | AttendAfter) -> None:
    network = build_model(RecurrentConfig(attention=attention, **SIZES)).eval()
    inputs = inputs_of(network)
    found = capture_tensors(network, inputs)
    assert found["decoder.cross_attn.weights"].shape == (1, 1, 7, 5) and found["decoder.hidden"].shape == (1, 7, 8)
    with torch.no_grad():
        assert_close(found["logits"], network(**inputs))


def test_names_select_tensors() -> None:
    network = build_model(CONFIGS["gpt"])
    inputs = inputs_of(network)
    found = capture_tensors(network, inputs, ["*.1.*.weights", "*.1.residual", "logits"])
    assert set(found) == {"decoder.blocks.1.self_attn.weights", "decoder.blocks.1.residual", "logits"}
    with pytest.raises(UserError, match=r"no tensor of the model has the name 'logit': did you mean logits\?"):
        capture_tensors(network, inputs, ["logit"])


def test_only_the_named_layer_leaves_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_model(CONFIGS["gpt"]).eval()
    inputs, name = inputs_of(network), "decoder.blocks.1.self_attn.weights"
    expected = capture_tensors(network, inputs)[name]
    calls: list[str] = []

    def counted(*given: Any) -> Any:
        calls.append("reference")
        return attention_reference(*given)

    monkeypatch.setattr(sys.modules["glassformer.nn.attention"], "attention_reference", counted)
    assert_close(capture_tensors(network, inputs, [name])[name], expected)
    assert len(calls) == 1


def test_a_trace_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_model(CONFIGS["gpt"])
    n_bytes = 4 * 7 * 16  # the embeddings
    monkeypatch.setattr(sys.modules[capture.__module__], "MAX_BYTES", n_bytes)
    capture_tensors(network, inputs_of(network), ["*.embeddings"])
    monkeypatch.setattr(sys.modules[capture.__module__], "MAX_BYTES", n_bytes - 1)
    with pytest.raises(UserError, match=r"more than 447 bytes at decoder.embeddings: choose fewer names or layers"):
        capture_tensors(network, inputs_of(network), ["*.embeddings"])


def test_a_stored_tensor_is_a_copy() -> None:
    network = build_model(CONFIGS["gpt"]).eval()
    inputs = inputs_of(network)
    before = capture_tensors(network, inputs, ["*.embeddings"])["decoder.embeddings"]
    with model_hooks(network, {"decoder.blocks.0.self_attn_norm.input": lambda name, x: x.mul_(2)}):
        found = capture_tensors(network, inputs, ["*.embeddings"])["decoder.embeddings"]
    assert_close(found, before)


def test_a_hook_replaces_the_output_of_a_head() -> None:
    """Head 2 without its context equals a network whose output projection has zeros for this head."""
    network = build_model(CONFIGS["gpt"]).eval()
    inputs = inputs_of(network)

    def without(name: str, context: Tensor) -> Tensor:
        return context.index_fill(1, torch.tensor([2]), 0.0)

    with torch.no_grad():
        with model_hooks(network, {"decoder.blocks.0.self_attn.context": without}):
            ablated = network(**inputs)
        assert not is_close(ablated, network(**inputs))
        network.decoder.blocks[0].self_attn.out_proj.weight[:, 8:12] = 0.0
        assert_close(ablated, network(**inputs))


def test_hooks_act_in_their_order_and_in_nested_blocks() -> None:
    network = build_model(CONFIGS["gpt"])
    inputs = inputs_of(network)
    calls: list[tuple[str, float]] = []

    def note(who: str) -> Any:
        def hook(name: str, x: Tensor) -> Tensor:
            calls.append((who, x[0, 0, 0].item()))
            return torch.full_like(x, len(calls))

        return hook

    with (
        model_hooks(network, {"decoder.embeddings": note("outer"), "*.embeddings": note("second")}),
        model_hooks(network, {"decoder.embeddings": note("inner")}),
        torch.no_grad(),
    ):
        network(**inputs)
    assert [who for who, _ in calls] == ["outer", "second", "inner"], "each once"
    assert [value for _, value in calls[1:]] == [1.0, 2.0], "each receives the result of the previous one"


def test_hooks_act_in_generation_and_scores(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    before, score = model.generate("the ", max_new_tokens=8), model.score(" b", source="a").log_prob
    token = model.tokenizer.encode("z")[0]

    def only_z(name: str, logits: Tensor) -> Tensor:
        return torch.full_like(logits, -1e4).index_fill(-1, torch.tensor([token]), 0.0)

    with model_hooks(model, {"logits": only_z}):
        assert model.generate("the ", max_new_tokens=8) == "z" * 8
        assert model.score(" b", source="a").log_prob < -1000
    assert model.generate("the ", max_new_tokens=8) == before
    assert model.score(" b", source="a").log_prob == score


def test_hooks_reach_the_encoder_of_a_state() -> None:
    network = build_model(CONFIGS["paper"]).eval()
    seen: list[str] = []
    with model_hooks(network, {"encoder.*.weights": lambda name, x: seen.append(name)}):
        network.start(1, 4, torch.tensor([[3, 4, 5]]))
    assert seen == [f"encoder.blocks.{i}.self_attn.weights" for i in range(2)]


def test_a_pattern_without_a_tensor_is_refused() -> None:
    network = build_model(CONFIGS["gpt"])
    inputs = inputs_of(network)
    with (
        pytest.raises(UserError, match=r"'decoder.blocks.9.residual': did you mean decoder.blocks"),
        model_hooks(network, {"decoder.blocks.9.residual": lambda name, x: None}),
    ):
        network(**inputs)


def test_a_replacement_keeps_the_shape() -> None:
    network = build_model(CONFIGS["gpt"])
    with (
        pytest.raises(ValueError, match=r"decoder.embeddings: expected shape \(1, 7, 16\), got \(1, 6, 16\)"),
        model_hooks(network, {"*.embeddings": lambda name, x: x[:, 1:]}),
    ):
        network(**inputs_of(network))
    assert not {"forward", "hidden"} & network.__dict__.keys(), "restored after an error"


def test_any_module_has_named_tensors() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    x = torch.randn(2, 3)
    with model_hooks(network, {"0": lambda name, y: torch.ones_like(y)}):
        assert torch.equal(network(x), torch.ones(2, 4))
    assert not torch.equal(network(x), torch.ones(2, 4))


def test_gradients_reach_a_replaced_tensor() -> None:
    network = build_model(CONFIGS["gpt"])
    scale = torch.ones((), requires_grad=True)
    with model_hooks(network, {"decoder.blocks.0.ff": lambda name, x: x * scale}):
        network(**inputs_of(network)).square().sum().backward()
    assert scale.grad is not None and float(scale.grad) != 0.0


@pytest.mark.parametrize("family", ["GPT2", "Bert", "Bart", "Marian"])
def test_weights_and_residual_stream_equal_transformers(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40},
        "Bert": {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 24,
            "max_position_embeddings": 40,
        },
    }.get(
        family,
        {
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "max_position_embeddings": 40,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
    )
    head = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM", "Marian": "MarianMTModel"}
    kind = getattr(transformers, head.get(family, "BartForConditionalGeneration"))
    config = getattr(transformers, f"{family}Config")(vocab_size=290, attn_implementation="eager", **sizes)
    both = imported(kind(config), tmp_path)
    network = both.network
    inputs = inputs_of(network)
    found = capture_tensors(network, inputs)
    named: dict[str, Any] = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        if "source_ids" in inputs:
            theirs = both.theirs(input_ids=inputs["source_ids"], decoder_input_ids=inputs["token_ids"], **named)
            pairs = {
                ("encoder", "self"): theirs.encoder_attentions,
                ("decoder", "self"): theirs.decoder_attentions,
                ("decoder", "cross"): theirs.cross_attentions,
            }
            states = theirs.decoder_hidden_states
        else:
            theirs = both.theirs(input_ids=inputs["token_ids"], **named)
            stack = "encoder" if family == "Bert" else "decoder"
            pairs, states = {(stack, "self"): theirs.attentions}, theirs.hidden_states
    for (stack, part), layers in pairs.items():
        for i, weights in enumerate(layers):
            assert_close(
                found[f"{stack}.blocks.{i}.{part}_attn.weights"], weights, terms=NETWORK, msg=f"{stack} {part}"
            )
    stack = "encoder" if family == "Bert" else "decoder"
    assert_close(found[f"{stack}.blocks.0.residual"], states[1], terms=NETWORK)
    assert_close(found["logits"], theirs.logits, terms=NETWORK)


def test_a_trace_is_a_mapping_with_axes(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    trace = capture(model, "the cat")
    assert len(trace.source) == trace["decoder.embeddings"].shape[1] == trace.inputs["token_ids"].shape[1]
    assert "tensors" in repr(trace) and "logits" in trace
    with pytest.raises(KeyError, match="did you mean logits"):
        trace["logit"]
    again = capture(model, trace.inputs["token_ids"][0].tolist(), names=["logits"])
    assert_close(again["logits"], trace["logits"])  # the fused kernel and the formulas


def test_the_standard_names_of_every_stack_exist() -> None:
    """A rename in the models must not empty a default pattern."""
    seen: set[str] = set()
    for name in ("paper", "gpt", "experts"):
        network = build_model(CONFIGS[name])
        seen |= capture_tensors(network, inputs_of(network)).keys()
    network = build_model(RecurrentConfig(attention=AttendBefore(), **SIZES))
    seen |= capture_tensors(network, inputs_of(network)).keys()
    for pattern in STANDARD:
        assert any(fnmatchcase(name, pattern) for name in seen), pattern


def test_every_method_with_a_tap_is_covered() -> None:
    taking = {
        name
        for name, method in inspect.getmembers(Transformer, inspect.isfunction)
        if "tap" in inspect.signature(method).parameters
    }
    assert taking == {"forward", "hidden", "encode", "step"}


@pytest.mark.parametrize(("config", "is_rotated"), [("gpt", False), ("llama", True)])
def test_a_trace_takes_the_names_of_transformer_lens(config: str, is_rotated: bool) -> None:
    """`test_against_transformer_lens.py` compares the tensors; rotated queries have another name there."""
    network = random_model(config)
    tensors = capture_tensors(network, inputs_of(network))
    trace = Trace(tensors, {}, [], [], [], is_rotated)
    query = tensors["decoder.blocks.1.self_attn.query"].transpose(1, 2)
    assert torch.equal(trace["blocks.1.attn.hook_rot_q"], query)
    assert torch.equal(trace["blocks.1.hook_resid_pre"], tensors["decoder.blocks.0.residual"])
    assert torch.equal(trace["resid_pre", 0], tensors["decoder.embeddings"])
    assert torch.equal(trace["ln_final.hook_normalized"], tensors["decoder.final"])
    if is_rotated:
        with pytest.raises(KeyError, match=r"use hook_rot_q and hook_rot_k, not 'blocks\.1\.attn\.hook_q'"):
            trace["blocks.1.attn.hook_q"]
        with pytest.raises(KeyError, match="use hook_rot_q and hook_rot_k"):
            trace["q", 1]
    else:
        assert torch.equal(trace["blocks.1.attn.hook_q"], query) and torch.equal(trace["q", 1], query)
    with pytest.raises(KeyError, match=r"the trace has no tensor 'blocks\.0\.hook_resid_mid'"):
        trace["blocks.0.hook_resid_mid"]
    assert 0 not in trace and ("q",) not in trace
