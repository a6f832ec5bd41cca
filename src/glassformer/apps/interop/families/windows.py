"""Windows of layers, and other settings that repeat over the layers: a pattern here, a list in a family."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from glassformer.apps.interop.hf_config import Fields, HFConfig
from glassformer.config.transformer import MAX_LAYERS, TransformerConfig

FULL, SLIDING = "full_attention", "sliding_attention"
T = TypeVar("T")


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
    lengths = range(1, len(values) + 1)
    fitting = (n for n in lengths if all(x == values[i % n] for i, x in enumerate(values)))
    return tuple(values[: next(fitting, 0)])


def windows_of(config: TransformerConfig) -> list[int]:
    """Return the window of each layer; 0 = all."""
    pattern = config.head_stack.window_pattern or (0,)
    return [pattern[i % len(pattern)] for i in range(config.head_stack.n_layers)]


def read_window(hf: HFConfig, default: int | None = None) -> int | None:
    """Return the attention window, in tokens; None = all. `default` is that of a missing key."""
    window = hf.maybe("sliding_window", int)
    if "sliding_window" not in hf.table:
        window = default
    if window is not None and window < 1:
        hf.problem(f"sliding_window: expected at least 1, got {window}")
    return window


def with_window(hf: HFConfig, fields: Fields, default: int | None = None) -> Fields:
    """Return the fields, and the window of all layers; `default` is that of a missing key, None = no window."""
    return fields | {"decoder.window_pattern": uniform(read_window(hf, default))}


def uniform(window: int | None) -> tuple[int, ...]:
    """Return `window_pattern` with one window for all layers; None = no window."""
    if window is None:
        return ()
    return (window,)


def write_window(config: TransformerConfig) -> dict[str, int | None]:
    """Return the key of the window of all layers."""
    return {"sliding_window": max(windows_of(config), default=0) or None}


def sliding_layers(hf: HFConfig, default: Callable[[int], bool]) -> list[bool]:
    """Return True for each layer with a window: those of `layer_types`, or those whose number fits `default`."""
    n_layers, kinds = hf.take("num_hidden_layers", int), hf.maybe("layer_types", list)
    if kinds is None:
        return [default(i) for i in range(min(n_layers, MAX_LAYERS))]
    if len(kinds) != n_layers or any(kind not in (FULL, SLIDING) for kind in kinds):
        hf.problem(f"layer_types must name {n_layers} layers, each {FULL} or {SLIDING}")
    return [kind == SLIDING for kind in kinds]


def pattern_of(hf: HFConfig, sliding: Sequence[bool], window: int | None) -> tuple[int, ...]:
    """Return `window_pattern` for the layers with a window."""
    if any(sliding) and window is None:
        hf.problem(f"layer_types has {SLIDING}, but sliding_window is not used")
    return shortest([window or 0 if is_sliding else 0 for is_sliding in sliding])


def layer_types(config: TransformerConfig) -> list[str]:
    """Return the value of the key: the kind of each layer."""
    return [SLIDING if window else FULL for window in windows_of(config)]
