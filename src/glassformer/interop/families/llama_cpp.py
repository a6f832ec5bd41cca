"""What llama.cpp calls the families that it runs, and what its code for each of them has fixed."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """One `general.architecture` of GGUF."""

    name: str
    activation: str
    """The one function of its feed-forward, in our words."""
    turns_neighbours: bool = False
    """Rotary positions turn entries 2i and 2i + 1 of a head, and not i and i + K/2."""
    has_factors: bool = False
    """A tensor may divide each rotary frequency by a factor of its own."""
    has_out_bias: bool = True
    """Attention's output projection may have a bias."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "gpt2": Architecture("gpt2", "gelu_tanh"),
    "llama": Architecture("llama", "silu", turns_neighbours=True, has_factors=True),
    "mistral": Architecture("llama", "silu", turns_neighbours=True, has_factors=True),
    "qwen2": Architecture("qwen2", "silu", has_out_bias=False),
    "qwen3": Architecture("qwen3", "silu", has_out_bias=False),
}
"""By `model_type` of transformers."""
