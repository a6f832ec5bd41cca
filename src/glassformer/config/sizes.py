"""One dial for a Transformer and its training: layers, width, heads, batch, steps and learning rates by one rule.

A Transformer of size S has S layers in its deepest stack, and a width of 64 · ⌈S / 2⌉: 32 per layer, because deep and
narrow models are better than wide ones at the sizes of this package (Liu 2024, MobileLLM, section 2.2). It has a head
for 64 of the width, and 4 at least. Compared with the same run of size S₀,

    tokens of a step × S / S₀,   steps × (S / S₀)²,   learning rates × S₀ / S

so that a model of k times as many layers, which has about k³ times as many parameters, reads k³ times as many tokens.
"""

import math
from typing import Any

from glassformer.common.errors import UserError
from glassformer.config.changes import apply_changes
from glassformer.config.run import Run
from glassformer.config.transformer import TransformerConfig

LARGEST = 64
RATE = 0.05
"""Learning rate of Muon and of AdamW beside it, times the size (measured: docs/log/2026-quality.md)."""
STEPS = ("max_steps", "eval_every", "checkpoint_every", "warmup_steps", "decay_steps")
RATES = ("learning_rate", "adamw_learning_rate")


def width(size: int) -> int:
    """Return the width of a Transformer of a size.

    >>> [width(size) for size in (1, 2, 3, 4, 6, 8, 12)]
    [64, 64, 128, 128, 192, 256, 384]
    """
    return 64 * math.ceil(size / 2)


def learning_rate(size: int) -> float:
    """Return the peak learning rate of Muon, and of AdamW beside it, for a new run of a size.

    >>> learning_rate(2), learning_rate(4)
    (0.025, 0.013)
    """
    return float(f"{RATE / size:.2g}")


def sized(run: Run, size: int) -> Run:
    """Return a run with its model and its training scaled to a size, by the rule of this file.

    The ratio of the inner width of the feed-forward layers to the width, the ratio of two stacks, and all that has no
    size, stay. Raises `UserError` for a recurrent model and for a size that is no whole number from 1 to `LARGEST`.

    >>> from glassformer.config.transformer import Stack
    >>> run = Run(model=TransformerConfig(decoder=Stack(4, 4, d_ff=512), d_model=128))
    >>> larger = sized(run, 8)
    >>> larger.model.d_model, larger.model.decoder.n_layers, larger.train.max_steps / run.train.max_steps
    (256, 8, 4.0)
    """
    if type(size) is not int or not 1 <= size <= LARGEST:
        raise UserError(f"size: expected a whole number from 1 to {LARGEST}, got {size!r}")
    if not isinstance(run.model, TransformerConfig):
        raise UserError("size: only Transformers have a size; give the keys of the recurrent model")
    # 1. The model
    model, wide, heads = run.model, width(size), max(4, width(size) // 64)
    deepest = max(stack.n_layers for stack in model.stacks.values())
    if not deepest:
        raise UserError("size: the model has no layers: give model.decoder.n_layers")
    changes: dict[str, Any] = {"model.d_model": wide}
    for name, stack in model.stacks.items():
        groups = stack.n_kv_heads and math.gcd(heads, max(1, round(heads * stack.n_kv_heads / stack.n_heads)))
        inner = round(stack.d_ff * wide / model.d_model)
        shape = {"n_heads": heads, "n_kv_heads": groups, "d_head": 0, "d_ff": inner}
        shape["n_layers"] = max(1, round(stack.n_layers * size / deepest))
        changes |= {f"model.{name}.{key}": value for key, value in shape.items()}
    # 2. The batch, in tokens or in rows
    by = size / deepest
    tokens = getattr(run.data, "batch_tokens", 0)
    key, batch = ("data.batch_tokens", tokens) if tokens else ("train.batch_size", run.train.batch_size)
    changes[key] = max(1, round(batch * by))
    # 3. The steps and the rates
    for table, value in (("train", run.train), ("train.schedule", run.train.schedule)):
        for name in STEPS:
            if n := getattr(value, name, 0):
                changes[f"{table}.{name}"] = max(1, int(float(f"{n * by**2:.2g}")))
    for name in RATES:
        if rate := getattr(run.train.optimizer, name, 0.0):
            changes[f"train.optimizer.{name}"] = float(f"{rate / by:.2g}")
    return apply_changes(run, changes)
