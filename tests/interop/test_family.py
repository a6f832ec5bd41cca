"""Tables of names are inverses in both directions, and name every tensor; a model that fits a family is read back."""

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs import GPT, LLAMA, random_inputs, random_model
from glassformer.apps.interop.families import FAMILIES
from glassformer.apps.interop.families.gpt import GPT2
from glassformer.apps.interop.family import Family, Rule, filled_in, matches, rule
from glassformer.apps.interop.hf import filled as network_with
from glassformer.apps.interop.hf import their_config, to_theirs
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.common.errors import UserError
from glassformer.config import transformer as c
from glassformer.store.model_directory import weights_of
from interop.family_configs import FAMILY_CONFIGS
from tolerances import assert_close


@given(
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    width=st.integers(1, 4),
    transposed=st.booleans(),
    is_row=st.booleans(),
    ours_apart=st.booleans(),
)
def test_both_directions_are_inverses(
    rows: list[int], width: int, transposed: bool, is_row: bool, ours_apart: bool
) -> None:
    parts = [torch.randn(n, width) for n in rows]
    apart, whole = tuple(f"part{i}" for i in range(len(rows))), ("whole",)
    is_row = is_row and not transposed
    sides = (apart, whole) if ours_apart else (whole, apart)
    one = Rule(*sides, transposed=transposed, is_row=is_row, rows=tuple(rows))
    ours = dict(zip(one.ours, parts if ours_apart else [torch.cat(parts)], strict=True))
    theirs = one.to_theirs(ours)
    assert tuple(theirs) == one.theirs
    assert all(x.is_contiguous() for x in theirs.values())
    assert {name: x.tolist() for name, x in one.to_ours(theirs).items()} == {n: x.tolist() for n, x in ours.items()}
    shapes = {name: x.shape for name, x in ours.items()}
    assert one.shapes_of_theirs(shapes) == {name: tuple(x.shape) for name, x in theirs.items()}


def test_a_table_must_name_every_tensor_once() -> None:
    shapes = {"a.weight": (2, 2), "decoder.b.0.weight": (1,), "decoder.b.1.weight": (1,)}
    table = [rule("a", "x"), rule("decoder.b.{i}", "y.{i}"), rule("absent", "z")]
    assert [one.theirs for one in filled_in(table, GPT, shapes)] == [("x.weight",), ("y.0.weight",), ("y.1.weight",)]
    with pytest.raises(ValueError, match=r"decoder\.b\.0\.weight"):
        filled_in(table[:1], GPT, shapes)
    with pytest.raises(ValueError, match="must map each tensor once"):
        filled_in([*table, rule("a", "again")], GPT, shapes)


def test_patterns() -> None:
    assert matches("h.3.attn.bias", ["h.*.attn.bias"])
    assert not matches("h.3.attn.bias.x", ["h.*.attn.bias"])


def test_a_family_refuses_settings_that_it_does_not_read() -> None:
    gpt = replace(GPT, activation="gelu_tanh")
    assert GPT2.misfits(gpt) == []
    assert GPT2.misfits(replace(gpt, token_dropout=0.3, residual_dropout=0.1)) == []  # only for training
    for change in ({"qk_norm": True}, {"norm": "rmsnorm"}, {"logit_scale": 0.0}, {"n_token_types": 2}):
        (misfit,) = GPT2.misfits(replace(gpt, **change))  # type: ignore[arg-type]
        assert misfit.startswith(f"model.{next(iter(change))}: expected ")
    assert len(GPT2.misfits(LLAMA)) == 5  # missing biases are no misfit


OTHER_VALUES: dict[str, tuple[Any, ...]] = {
    "n_token_types": (0, 2),
    "norm_eps": (1e-3,),
    "attention_scale": (0.5, 1.0),
    "d_embedding": (6, 16),
    "source_vocab_size": (7,),
    "source_max_len": (9,),
    "positions": (c.LearnedPositions(1), c.RotaryPositions(fraction=0.5), c.AlibiPositions(), c.NoPositions()),
    "head": (c.TokenHead(transform=True), c.TokenHead(bias="learned"), c.TokenHead(bias="constant")),
}
OTHER_SHAPES = ({"n_kv_heads": 1}, {"d_head": 8}, {"window_pattern": (3,)}, {"window_pattern": (0, 4)})


def changed(config: c.TransformerConfig) -> Iterator[c.TransformerConfig]:
    """Yield the configuration with each setting changed to another value, as far as the result is valid."""
    changes: list[dict[str, Any]] = [{}]
    hints = typing.get_type_hints(c.TransformerConfig)
    for field in dataclasses.fields(config):
        values = typing.get_args(hints[field.name]) if typing.get_origin(hints[field.name]) is typing.Literal else ()
        if hints[field.name] is bool:
            values = (True, False)
        changes += [{field.name: value} for value in OTHER_VALUES.get(field.name, values)]
    for side, stack in config.stacks.items():
        changes += [{side: replace(stack, **shape)} for shape in OTHER_SHAPES]  # type: ignore[arg-type]
    for change in changes:
        try:
            yield replace(config, **change)
        except UserError:
            continue


def again(family: Family, config: c.TransformerConfig, weights: dict[str, torch.Tensor]) -> Any:
    """Return the network that is read from the keys and tensors that are written for a model."""
    config, weights = family.recast(config, weights)
    theirs = to_theirs(family, config, weights)
    hf = HFConfig(their_config(family, config, ()), "config.json", theirs.keys())
    read = family.read(hf, family.architecture(config))
    hf.done()
    ours: dict[str, torch.Tensor] = {}
    for one in family.rules(read):
        names = {name: name.removeprefix(family.prefix) if name not in theirs else name for name in one.theirs}
        ours |= one.to_ours({name: theirs[stored] for name, stored in names.items()})
    return network_with(read, ours).double()


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_a_model_that_fits_is_read_back_with_the_same_outputs(name: str) -> None:
    """Change every setting of a model: each family refuses the result, or what it writes computes the same."""
    n_fitting = n_refused = 0
    for config in changed(replace(FAMILY_CONFIGS[name], pad_id=0)):
        for family in FAMILIES:
            if family.misfits(config):
                n_refused += 1
                continue
            n_fitting += 1
            network = random_model(config)
            found = again(family, config, weights_of(network))
            inputs = random_inputs(network)
            with torch.inference_mode():
                expected, outputs = (one.double()(inputs.token_ids, **inputs.others) for one in (network, found))
            assert_close(outputs, expected, dtype=torch.float32)  # in which weights are stored
    assert n_fitting > 10 and n_refused > 100
