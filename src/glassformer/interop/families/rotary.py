"""Rotary positions in their words: `rope_parameters`, and before transformers 5 `rope_theta` and `rope_scaling`."""

import math
from collections.abc import Mapping
from typing import Any

from glassformer.config import transformer as c
from glassformer.interop.compatibility import Compatibility
from glassformer.interop.hf_config import HFConfig

ORIGINAL = "original_max_position_embeddings"
KINDS = {"default": "default", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
LENGTH_BOUND = ("dynamic", "longrope", "su")
"""Kinds whose frequencies change with the length of the text, so that keys in a cache would be turned by stale ones."""


def read_rotary(given: HFConfig, max_len: int) -> c.RotaryPositions:
    """Their positions as ours; what ours cannot hold exactly is told to `given`."""
    rope = given.part(_in_one_table(given), "rope_parameters")
    rope.only("partial_rotary_factor", 1.0)  # these models turn whole heads whatever it says, or fail
    base = rope.take("rope_theta", float, 10000.0)
    scaling: c.Scaling | None = None
    if rope.table.get("rope_type") in LENGTH_BOUND:
        rope.pass_over(*rope.table)
        rope.problem(
            f"rope_type {rope.table['rope_type']} changes the frequencies with the length of a text, which makes the "
            "keys in a cache stale, and is not supported"
        )
    else:
        scaling = _scaling(rope, max_len)
    for problem in rope.problems():
        given.problem(f"rope_parameters: {problem}")
    return c.RotaryPositions(base=base, scaling=scaling)


def write_rotary(positions: c.RotaryPositions) -> dict[str, Any]:
    """Both spellings: readers older than transformers 5, vLLM and llama.cpp look for the second."""
    base, scaling = {"rope_theta": positions.base}, _scaling_in_their_words(positions.scaling)
    new = {"rope_parameters": base | (scaling or {"rope_type": "default"})}
    return new | base | ({} if scaling is None else {"rope_scaling": scaling})


def fit_rotary(fit: Compatibility, config: c.TransformerConfig) -> None:
    """Tells whether the positions are rotary, of whole heads."""
    positions = config.positions
    is_rotary = isinstance(positions, c.RotaryPositions)
    fit.check("positions", is_rotary, f"model.positions is {positions.kind}, and it must be rotary")
    if isinstance(positions, c.RotaryPositions) and positions.fraction != 1:
        fit.misfits.append(f"model.positions.fraction is {positions.fraction}, and it must be 1")


def _in_one_table(given: HFConfig) -> dict[str, Any]:
    """What the keys of either spelling say, as `rope_parameters` has it; where both are there they must agree."""
    tables = [given.maybe("rope_parameters", dict) or {}, given.maybe("rope_scaling", dict) or {}]
    outside = {"rope_theta": given.maybe("rope_theta", float)}
    outside["partial_rotary_factor"] = given.maybe("partial_rotary_factor", float)
    found: dict[str, Any] = {}
    for table in [*map(_renamed, tables), outside]:
        for key, value in table.items():
            if value is not None and found.setdefault(key, value) != value:
                given.problem(f"rope_parameters, rope_scaling and rope_theta disagree about {key}")
    return found


def _renamed(table: Mapping[str, Any]) -> dict[str, Any]:
    """With `rope_type`, where older files have `type`."""
    table = dict(table)
    kind = table.pop("type", None)
    return {"rope_type": kind} | table if table or kind else {}


def _scaling(rope: HFConfig, max_len: int) -> c.Scaling | None:
    kind = rope.choose("rope_type", KINDS, "default")
    if kind == "default":
        return None
    factor = rope.take("factor", float)
    if kind == "linear":
        return c.LinearScaling(factor)
    original = rope.take(ORIGINAL, int, max_len)
    if kind == "llama3":
        low, high = rope.take("low_freq_factor", float), rope.take("high_freq_factor", float)
        if not low < high:
            rope.problem(f"low_freq_factor {low} must be below high_freq_factor {high}")
        return c.Llama3Scaling(factor, low, high, original)
    rope.only("truncate", True)
    own = _warmth(factor)
    told, mscale, all_dim = (rope.maybe(key, float) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if told is None:
        told = _warmth(factor, mscale) / (_warmth(factor, all_dim) or math.inf) if mscale and all_dim else own
    if not math.isclose(told, own, rel_tol=1e-9):
        rope.problem(f"its attention factor is {told:.6g}, and only 0.1·ln(factor) + 1 = {own:.6g} is supported")
    # 0 and null are the defaults to transformers, too
    fast, slow = rope.maybe("beta_fast", float) or 32.0, rope.maybe("beta_slow", float) or 1.0
    return c.YarnScaling(factor, original, fast, slow)


def _warmth(factor: float, mscale: float = 1.0) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _scaling_in_their_words(scaling: c.Scaling | None) -> dict[str, Any] | None:
    match scaling:
        case c.LinearScaling(factor):
            return {"rope_type": "linear", "factor": factor}
        case c.Llama3Scaling(factor, low, high, original):
            known = {"rope_type": "llama3", "factor": factor, ORIGINAL: original}
            return known | {"low_freq_factor": low, "high_freq_factor": high}
        case c.YarnScaling(factor, original, fast, slow):
            known = {"rope_type": "yarn", "factor": factor, ORIGINAL: original}
            return known | {"beta_fast": fast, "beta_slow": slow}
    return None
