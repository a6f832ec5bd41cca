"""A part that is off equals a network with zero weights in its place, or without the layer."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from configs import CONFIGS, RECURRENT, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.search import Search
from glassformer.inspection.ablation import Part, ablate, ablation_hooks, all_parts
from glassformer.inspection.capture import capture, capture_tensors, model_hooks
from glassformer.models.build import build_model
from glassformer.tasks.reporting import Outcome
from tolerances import F64, assert_close, is_close, near


def quiet(text: str) -> None:
    """Drop a note."""


def inputs_of(network: Any, n_rows: int = 2) -> dict[str, Tensor]:
    found = random_inputs(network, n_rows)
    return {"token_ids": found.token_ids, **found.others}


@torch.no_grad()
def without_by_weights(network: Any, part: Part) -> Any:
    """Return a copy of the network in which the part is off by its weights alone."""
    changed = copy.deepcopy(network)
    stack = changed.decoder if part.kind == "cross" else getattr(changed, part.kind)
    if part.head is None and not part.feed_forward:
        stack.blocks = nn.ModuleList(block for i, block in enumerate(stack.blocks) if i != part.layer)
        stack.windows = tuple(window for i, window in enumerate(stack.windows) if i != part.layer)
        return changed
    block = stack.blocks[part.layer]
    if part.feed_forward:
        for parameter in (block.ff.down_proj if block.ff_out_norm is None else block.ff_out_norm).parameters():
            parameter.zero_()
        return changed
    attention = block.cross_attn if part.kind == "cross" else block.self_attn
    assert part.head is not None
    width = attention.d_head
    attention.out_proj.weight[:, part.head * width : (part.head + 1) * width] = 0.0
    return changed


@pytest.mark.parametrize("name", ["gpt", "llama", "post_norm", "sandwich", "window_pattern", "bert", "paper", "t5"])
def test_every_part_equals_a_network_without_its_weights(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    with torch.no_grad():
        unchanged = network(**inputs)
        for part in all_parts(network):
            with ablate(network, [part]):
                found = network(**inputs)
            assert_close(found, without_by_weights(network, part)(**inputs), msg=str(part))
            assert not is_close(found, unchanged), part


def test_the_parts_of_a_network() -> None:
    names = [str(part) for part in all_parts(random_model("unequal_stacks"))]
    heads = [f"decoder.{i}.head.{h}" for i in range(2) for h in range(4)]
    assert names == [
        *["encoder.0.head.0", "encoder.0.head.1", "encoder.0.feed_forward", "encoder.0"],
        *heads,
        *[name.replace("decoder", "cross") for name in heads],
        *["decoder.0.feed_forward", "decoder.1.feed_forward", "decoder.0", "decoder.1"],
    ]
    assert not any(part.feed_forward for part in all_parts(random_model("attention_only")))
    assert [str(part) for part in all_parts(random_model("bahdanau"))] == ["cross.0.head.0"]
    assert all_parts(random_model("sutskever")) == []


@pytest.mark.parametrize(("number", "name"), list(enumerate(CONFIGS)))
def test_a_row_without_a_part_equals_the_part_alone(number: int, name: str) -> None:
    """Half of the configurations replace by zero, the others by the mean; a third of the rows is compared."""
    network = random_model(name)
    parts = all_parts(network)
    inputs = inputs_of(network, 1)
    means = capture_tensors(network, inputs) if number % 2 else None
    repeated = {key: x.repeat(len(parts), 1) for key, x in inputs.items()}
    with torch.no_grad():
        with model_hooks(network, ablation_hooks(network, [[part] for part in parts], means)):
            together = network(**repeated)
        for row, part in list(zip(together, parts, strict=True))[number % 3 :: 3]:
            with ablate(network, [str(part)], means):
                assert_close(row, network(**inputs)[0])


def test_several_parts_are_off_together() -> None:
    network = random_model("gpt")
    inputs = inputs_of(network)
    parts = [Part("decoder", 0, 1), Part("decoder", 0, 2), Part("decoder", 1, feed_forward=True)]
    expected = network
    for part in parts:
        expected = without_by_weights(expected, part)
    with torch.no_grad(), ablate(network, parts):
        assert_close(network(**inputs), expected(**inputs))
    with torch.no_grad(), ablate(network, [Part("decoder", 0), Part("decoder", 1)]):
        x = network.decoder.embeddings(inputs["token_ids"], torch.arange(9), None)
        assert_close(network(**inputs), network.head(network.decoder.final_norm(x)))


@pytest.mark.parametrize("name", ["luong", "luong_concat"])
def test_the_attention_of_a_recurrent_decoder(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    changed = copy.deepcopy(network)
    with torch.no_grad():
        changed.decoder.combine.weight[:, : network.decoder.cross_attn.d_context] = 0.0  # of [context; state]
        with ablate(network, ["cross.0.head.0"]):
            assert_close(network(**inputs), changed(**inputs))


@pytest.mark.parametrize("name", [name for name in RECURRENT if all_parts(random_model(name))])
def test_a_recurrent_decoder_without_attention_ignores_the_order_of_its_memory(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)

    def flipped(_: str, memory: Tensor) -> Tensor:
        return memory.flip(1) * 2

    with torch.no_grad():
        with ablate(network, ["cross.0.head.0"]):
            before = network(**inputs)
            with model_hooks(network, {"encoder.memory": flipped}):
                assert_close(network(**inputs), before)
        assert not is_close(network(**inputs), before)


def test_the_mean_of_a_trace_replaces_a_part() -> None:
    """A head whose values are equal at all positions does not change; other heads get their mean."""
    network = random_model("gpt").float()
    inputs = inputs_of(network, 1)
    attention = network.decoder.blocks[0].self_attn
    with torch.no_grad():
        attention.v_proj.weight[:4] = 0.0  # head 0: values are the bias
        means = capture_tensors(network, inputs, ["*.context", "*.ff"])
        unchanged = network(**inputs)
        with ablate(network, ["decoder.0.head.0"], means):
            assert_close(network(**inputs), unchanged)
        context = means["decoder.blocks.0.self_attn.context"].clone()
        context[:, 2] = context[:, 2].mean(dim=1, keepdim=True)
        with ablate(network, ["decoder.0.head.2"], means):
            found = network(**inputs)
        with model_hooks(network, {"decoder.blocks.0.self_attn.context": lambda name, x: context}):
            assert_close(found, network(**inputs))
        assert not is_close(found, unchanged)
        mean = means["decoder.blocks.1.ff"].mean(dim=1, keepdim=True).expand(-1, 9, -1)
        with ablate(network, ["decoder.1.feed_forward"], means):
            found = network(**inputs)
        with model_hooks(network, {"decoder.blocks.1.ff": lambda name, x: mean}):
            assert_close(found, network(**inputs))
    with (
        pytest.raises(UserError, match=r"means has no tensor decoder.blocks.0.self_attn.context"),
        ablate(network, ["decoder.0.head.0"], {}),
    ):
        pass


def test_parts_are_off_in_beam_search() -> None:
    network = random_model("paper")
    sources = torch.tensor([[3, 4, 5], [6, 7, 8]]), None
    parts = [Part("cross", 0, 1), Part("decoder", 1, 2), Part("encoder", 0, feed_forward=True), Part("decoder", 0)]
    changed = network
    for part in parts:
        changed = without_by_weights(changed, part)
    search = Search(BeamConfig(3, max_new_tokens=9), 1, 2, 24, n_best=3)
    found, expected = [], beam_search(changed, sources, search)
    with ablate(network, parts):
        found = beam_search(network, sources, search)
    assert [[h.ids for h in row] for row in found] == [[h.ids for h in row] for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.log_prob for h in ours] == near([h.log_prob for h in theirs], dtype=F64)


def test_parts_are_off_in_all_methods_of_a_model(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    before = model.score("the cat", log=quiet).log_prob
    trace = capture(model, "the cat")
    with ablate(model, ["decoder.0", "decoder.1"]):
        inside = capture(model, "the cat", names=["decoder.final", "decoder.blocks.0.input", "decoder.embeddings"])
        assert torch.equal(inside["decoder.blocks.0.input"], inside["decoder.embeddings"])
        assert not torch.equal(inside["decoder.final"], trace["decoder.final"])
        assert model.score("the cat", log=quiet).log_prob != before
    assert model.score("the cat", log=quiet).log_prob == before


@pytest.mark.parametrize("text", ["decoder.0.head.3", "encoder.11.feed_forward", "decoder.2", "cross.0.head.0"])
def test_the_name_of_a_part(text: str) -> None:
    assert str(Part.parse(text)) == text


@pytest.mark.parametrize("text", ["decoder", "decoder.x", "cross.0", "cross.0.feed_forward", "decoder.0.head", ""])
def test_a_name_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"part: expected a name such as decoder.0.head.3.* got"):
        Part.parse(text)


def test_a_part_that_does_not_exist_is_refused() -> None:
    for name, part, message in (
        ("gpt", "decoder.0.head.4", r"no part decoder.0.head.4: did you mean decoder.0.head"),
        ("gpt", "encoder.0.head.0", r"no part encoder.0.head.0: did you mean decoder.0.head"),
        ("attention_only", "decoder.0.feed_forward", "it has no parts of this type"),
        ("bahdanau", "decoder.0", "it has no parts of this type"),
    ):
        with pytest.raises(UserError, match=message), ablate(random_model(name), [part]):
            pass


def test_a_capture_inside_the_block_stores_the_changed_tensors() -> None:
    network = build_model(CONFIGS["gpt"]).eval()
    inputs = {"token_ids": torch.randint(3, 19, (1, 7))}
    with ablate(network, ["decoder.0.head.1", "decoder.1"]):
        found = capture_tensors(network, inputs)
    assert not found["decoder.blocks.0.self_attn.context"][:, 1].any()
    assert_close(found["decoder.blocks.1.residual"], found["decoder.blocks.0.residual"])
