"""Key tables: both directions are inverses, and a table with a missing tensor is an error."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs import GPT, LLAMA
from glassformer.interop.families.gpt2 import GPT2
from glassformer.interop.family import Key, Rule, keys, matches, rule


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
    key = Key(*((apart, whole) if ours_apart else (whole, apart)), tuple(rows), transposed, is_row)
    ours = parts if ours_apart else [torch.cat(parts)]
    theirs = key.to_theirs(ours)
    assert len(theirs) == len(key.theirs)
    assert all(x.is_contiguous() for x in theirs)
    assert [x.tolist() for x in key.to_ours(theirs)] == [x.tolist() for x in ours]
    shapes = {name: x.shape for name, x in zip(key.ours, ours, strict=True)}
    assert key.shapes_of_theirs(shapes) == [tuple(x.shape) for x in theirs]


def filled(table: list[Rule], shapes: dict[str, tuple[int, ...]]) -> list[Key]:
    return keys(table, n_layers=lambda name: 2, rows=lambda name: [1], shapes=shapes)


def test_a_table_must_name_every_tensor_once() -> None:
    shapes = {"a.weight": (2, 2), "b.0.weight": (1,), "b.1.weight": (1,)}
    table = [rule("a", "x"), rule("b.{i}", "y.{i}"), rule("absent", "z")]
    assert [key.theirs for key in filled(table, shapes)] == [("x.weight",), ("y.0.weight",), ("y.1.weight",)]
    with pytest.raises(ValueError, match=r"b\.0\.weight"):
        filled(table[:1], shapes)
    with pytest.raises(ValueError, match="must map each tensor once"):
        filled([*table, rule("a", "again")], shapes)


def test_patterns() -> None:
    assert matches("h.3.attn.bias", ["h.*.attn.bias"])
    assert not matches("h.3.attn.bias.x", ["h.*.attn.bias"])


def test_a_family_refuses_settings_that_it_does_not_read() -> None:
    from dataclasses import replace

    gpt = replace(GPT, activation="gelu_tanh")
    assert GPT2.misfits(gpt) == []
    assert GPT2.misfits(replace(gpt, token_dropout=0.3, residual_dropout=0.1)) == []  # only for training
    for change in ({"qk_norm": True}, {"norm": "rmsnorm"}, {"scale_logits": True}, {"n_token_types": 2}):
        (misfit,) = GPT2.misfits(replace(gpt, **change))  # type: ignore[arg-type]
        assert misfit.startswith(f"model.{next(iter(change))}: expected ")
    assert len(GPT2.misfits(LLAMA)) == 5  # missing biases are no misfit
