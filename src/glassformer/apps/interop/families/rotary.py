"""Rotary positions and attention windows in `config.json`.

The settings of the positions are in `rope_parameters`; before transformers 5, they were in `rope_theta` and
`rope_scaling`. Settings that repeat over the layers are a pattern in glassformer, and a list or a rule in a family.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from glassformer.apps.interop.hf_config import Converter, Fields, HFConfig
from glassformer.config import transformer as c
from glassformer.config.schema import to_dict

T = TypeVar("T")
FULL, SLIDING = "full_attention", "sliding_attention"


def shortest(windows: Sequence[int]) -> tuple[int, ...]:
    """Return the shortest pattern whose repetition gives every layer its window; empty without windows.

    >>> shortest([0, 4, 0, 4, 0]), shortest([0, 0, 4]), shortest([0, 0])
    ((0, 4), (0, 0, 4), ())
    """
    return repeated(windows) if any(windows) else ()


def repeated(values: Sequence[T]) -> tuple[T, ...]:
    """Return the shortest pattern whose repetition gives the values of all layers.

    >>> repeated([1.0, 1.0, 0.0, 1.0])
    (1.0, 1.0, 0.0)
    """
    fitting = (n for n in range(1, len(values) + 1) if all(x == values[i % n] for i, x in enumerate(values)))
    return tuple(values[: next(fitting, 0)])


def windows_of(config: c.TransformerConfig) -> list[int]:
    """Return the window of each layer; 0 = no window."""
    pattern = config.head_stack.window_pattern or (0,)
    return [pattern[i % len(pattern)] for i in range(config.head_stack.n_layers)]


def read_window(hf: HFConfig, default: int | None = None) -> int | None:
    """Return the attention window in tokens; None = no window. A missing key gives `default`."""
    window = hf.maybe("sliding_window", int)
    if "sliding_window" not in hf.table:
        window = default
    if window is not None and window < 1:
        hf.problem(f"sliding_window: expected at least 1, got {window}")
    return window


def window(default: int | None = None) -> Converter:
    """Return the converter of one window for all layers. A missing key gives `default`; None = no window."""

    def read(hf: HFConfig, fields: Fields) -> Fields:
        window = read_window(hf, default)
        if window is None:
            return {"decoder.window_pattern": ()}
        return {"decoder.window_pattern": (window,)}

    return Converter(read, lambda config: {"sliding_window": max(windows_of(config), default=0) or None})


def sliding_layers(hf: HFConfig, default: Callable[[int], bool]) -> list[bool]:
    """Return True for each layer with a window, by `layer_types`, or else by `default` of the layer's number."""
    n_layers, kinds = hf.take("num_hidden_layers", int), hf.maybe("layer_types", list)
    if kinds is None:
        return [default(i) for i in range(min(n_layers, c.MAX_LAYERS))]
    if len(kinds) != n_layers or any(kind not in (FULL, SLIDING) for kind in kinds):
        hf.problem(f"layer_types must name {n_layers} layers, each {FULL} or {SLIDING}")
    return [kind == SLIDING for kind in kinds]


def pattern_of(hf: HFConfig, sliding: Sequence[bool], window: int | None) -> tuple[int, ...]:
    """Return `window_pattern` for the layers with a window."""
    if any(sliding) and window is None:
        hf.problem(f"layer_types has {SLIDING}, but sliding_window is not used")
    return shortest([window or 0 if is_sliding else 0 for is_sliding in sliding])


def layer_types(config: c.TransformerConfig) -> list[str]:
    """Return the value of the key `layer_types`: the kind of each layer."""
    return [SLIDING if window else FULL for window in windows_of(config)]


ORIGINAL = "original_max_position_embeddings"
KINDS = {"default": "default", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
LONG = ("longrope", "su")
LENGTH_BOUND = ("dynamic", *LONG)
"""Kinds of scaling whose frequencies change with the length of the text, which makes cached keys stale."""


def read_rotary(
    hf: HFConfig, max_len: int, fraction: float | None = None, base: float = 10000.0, original: int = 0
) -> c.RotaryPositions:
    """Read the rotary positions; record in `hf` the settings that glassformer cannot represent exactly.

    `fraction` and `base` are the defaults of their keys; without a `fraction`, the family rotates whole heads. A
    scaling of the kinds `LONG` is read for texts of at most `original` tokens; with `original` 0, it is not supported.
    """
    rope = hf.part(_in_one_table(hf), "rope_parameters")
    if fraction is None:
        rope.only("partial_rotary_factor", 1.0)  # these models ignore the key, or fail
        fraction = 1.0
    else:
        fraction = rope.take("partial_rotary_factor", float, fraction)
    base = rope.take("rope_theta", float, base)
    if not base > 1:
        rope.problem(f"rope_theta: expected above 1, got {base:g}")
        base = 10000.0
    scaling: c.Scaling | None = None
    if original > 1 and rope.table.get("rope_type") in LONG:
        scaling = _short_texts(rope, max_len, original)
    elif rope.table.get("rope_type") in LENGTH_BOUND:
        rope.pass_over(*rope.table)
        rope.problem(
            f"rope_type {rope.table['rope_type']} is not supported: its frequencies change with the length of the "
            "text, which makes cached keys stale"
        )
    else:
        scaling = _scaling(rope, max_len)
    for problem in rope.problems():
        hf.problem(f"rope_parameters: {problem}")
    return c.RotaryPositions(base=base, fraction=fraction, scaling=scaling)


def write_rotary(positions: c.Positions, with_fraction: bool = False) -> dict[str, Any]:
    """Return the keys of both formats. Versions before transformers 5, vLLM and llama.cpp read the old format.

    In place of positions that are not rotary, write default rotary positions: `Family.misfits` then finds the
    difference. `with_fraction` is true for a family that may rotate parts of heads.
    """
    if not isinstance(positions, c.RotaryPositions):
        positions = c.RotaryPositions()
    base = {"rope_theta": positions.base}
    if with_fraction:
        base["partial_rotary_factor"] = positions.fraction
    if positions.scaling is None:
        return {"rope_parameters": base | {"rope_type": "default"}} | base
    names = {"kind": "rope_type", "original_max_len": ORIGINAL}
    scaling = {names.get(name, name): value for name, value in to_dict(positions.scaling).items()}
    if isinstance(positions.scaling, c.YarnScaling) and not positions.scaling.attention_factor:
        del scaling["attention_factor"]
    if isinstance(positions.scaling, c.LongRopeScaling):
        divisors = scaling.pop("divisors")
        scaling |= {"short_factor": divisors, "long_factor": divisors}
    keys = {"rope_parameters": base | scaling, **base, "rope_scaling": scaling}
    if with_fraction:  # GPT-NeoX and Phi-3 read rope_scaling in place of rope_parameters
        keys["rope_scaling"] = base | scaling
    return keys


def read_bases(hf: HFConfig, max_len: int, sliding: Sequence[bool], keys: Mapping[str, float]) -> c.RotaryPositions:
    """Read the base and the scaling of layers without a window, and the base of layers with a window (`sliding`).

    `keys` has the old keys of the two bases, in this order, with their defaults.
    """
    (whole_key, whole_base), (local_key, local_base) = keys.items()
    kinds, scaling = hf.maybe("rope_parameters", dict) or {}, hf.maybe("rope_scaling", dict)
    bases = {FULL: hf.maybe(whole_key, float), SLIDING: hf.maybe(local_key, float)}
    if kinds.keys() - bases or not all(isinstance(x, dict | None) for x in kinds.values()):
        hf.problem(f"rope_parameters must have the tables {FULL} and {SLIDING}")
        kinds = {}
    whole = hf.part({"rope_parameters": kinds.get(FULL), "rope_scaling": scaling, "rope_theta": bases[FULL]}, FULL)
    local = hf.part({"rope_parameters": kinds.get(SLIDING), "rope_theta": bases[SLIDING]}, SLIDING)
    positions, windowed = read_rotary(whole, max_len, base=whole_base), read_rotary(local, max_len, base=local_base)
    for problem in [*whole.problems(), *local.problems()]:
        hf.problem(problem)
    if windowed.scaling is not None or (positions.scaling is not None and windowed.base == positions.base):
        hf.problem(f"rope_parameters: scaling is supported in {FULL} only, and with another base than in {SLIDING}")
    return with_bases(positions, [windowed.base if is_sliding else positions.base for is_sliding in sliding])


def with_bases(positions: c.RotaryPositions, bases: Sequence[float]) -> c.RotaryPositions:
    """Return the positions with `bases`, one per layer; 0 = no rotation."""
    pattern = repeated(bases)
    if pattern == (positions.base,):
        pattern = ()
    return replace(positions, base_pattern=pattern)


def write_bases(config: c.TransformerConfig, keys: Mapping[str, float]) -> dict[str, Any]:
    """Return both formats for two bases: the inverse of `read_bases`."""
    positions, (whole_key, local_key) = config.positions, keys
    if not isinstance(positions, c.RotaryPositions):
        positions = c.RotaryPositions()
    windowed = (positions.bases[i % len(positions.bases)] for i, window in enumerate(windows_of(config)) if window)
    local, written = next(windowed, keys[local_key]), write_rotary(positions)
    tables = {FULL: written.pop("rope_parameters"), SLIDING: {"rope_theta": local, "rope_type": "default"}}
    return {"rope_parameters": tables, whole_key: written.pop("rope_theta"), local_key: local} | written


def _in_one_table(hf: HFConfig) -> dict[str, Any]:
    """Merge both formats into one table with the keys of `rope_parameters`; record keys whose values differ."""
    tables = [hf.maybe("rope_parameters", dict) or {}, hf.maybe("rope_scaling", dict) or {}]
    outside = {"rope_theta": hf.maybe("rope_theta", float)}
    outside["partial_rotary_factor"] = hf.maybe("partial_rotary_factor", float)
    merged: dict[str, Any] = {}
    for table in [*map(_renamed, tables), outside]:
        for key, value in table.items():
            if value is not None and merged.setdefault(key, value) != value:
                hf.problem(f"rope_parameters, rope_scaling and rope_theta disagree about {key}")
    return merged


def _renamed(table: Mapping[str, Any]) -> dict[str, Any]:
    table = dict(table)
    kind = table.pop("type", None)
    if not table and not kind:
        return {}
    return {"rope_type": kind} | table


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
    expected = _warmth(factor)
    attention, mscale, all_dim = (rope.maybe(key, float) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if attention is None and mscale and all_dim:
        attention = _warmth(factor, mscale) / (_warmth(factor, all_dim) or math.inf)
    if attention is None or math.isclose(attention, expected, rel_tol=1e-9):
        attention = 0.0
    elif attention <= 0:
        rope.problem(f"attention_factor, or that of mscale and mscale_all_dim, must be above 0, got {attention:.6g}")
        attention = 0.0
    # transformers, too, replaces 0 and null by the defaults
    fast, slow = rope.maybe("beta_fast", float) or 32.0, rope.maybe("beta_slow", float) or 1.0
    return c.YarnScaling(factor, original, fast, slow, attention)


def _short_texts(rope: HFConfig, max_len: int, original: int) -> c.LongRopeScaling | None:
    """Read the divisors for texts of at most `original` tokens, and the attention factor of all texts."""
    rope.pass_over("rope_type", "long_factor", ORIGINAL)
    divisors = rope.take("short_factor", list)
    if not all(type(x) in (int, float) for x in divisors):
        rope.problem("short_factor must be a list of numbers")
        return None
    factor = rope.take("factor", float, max_len / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return c.LongRopeScaling(tuple(map(float, divisors)), rope.take("attention_factor", float, usual))


def _warmth(factor: float, mscale: float = 1.0) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
