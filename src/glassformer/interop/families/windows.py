"""Attention windows of layers: the pattern of a configuration and the list of a family."""

from collections.abc import Sequence

from glassformer.config.transformer import TransformerConfig


def shortest(windows: Sequence[int]) -> tuple[int, ...]:
    """Return the shortest pattern whose repetition gives every layer its window; empty without windows.

    >>> shortest([0, 4, 0, 4, 0]), shortest([0, 0, 4]), shortest([0, 0])
    ((0, 4), (0, 0, 4), ())
    """
    if not any(windows):
        return ()
    fitting = (n for n in range(1, len(windows) + 1) if all(x == windows[i % n] for i, x in enumerate(windows)))
    return tuple(windows[: next(fitting)])


def windows_of(config: TransformerConfig) -> list[int]:
    """Return the window of each layer; 0 = all."""
    pattern = config.head_stack.window_pattern or (0,)
    return [pattern[i % len(pattern)] for i in range(config.head_stack.n_layers)]
