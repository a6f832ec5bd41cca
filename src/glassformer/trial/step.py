"""A step of a network on a device, compared with the same step in double precision on the CPU.

The bound of an error. Every processor adds the terms of a product in an order of its own. With n terms and the unit
roundoff u, its result is the exact result for weights that are changed by at most about λ√n u, with λ = 4 (Higham and
Mary 2019). The exact step is repeated with weights that are changed at random: this measures how much each result
depends on them. A right device is at most `SAFETY` times as far away.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.transformer import SPECIAL_IDS, PositionHead, SequenceHead, TransformerConfig, VectorHead
from glassformer.data.batching import NOT_SCORED
from glassformer.models.build import Network, build_model
from glassformer.models.devices import autocast_dtype
from glassformer.objectives.loss import token_cross_entropy

N_ROWS, N_TOKENS, N_WRITTEN = 2, 24, 4
"""Rows of the batch, tokens of a row, and tokens at the end of a row that are read one at a time, as in generation."""
MAX_WEIGHTS, FEW_LAYERS, FEW_TOKENS = 1 << 23, 2, 1 << 12
"""A network of more weights than `MAX_WEIGHTS` is tried with few layers of each stack, and a small vocabulary."""
DEFAULT_VOCAB = 256
"""Vocabulary of a configuration whose vocabulary the data decides."""
SAFETY, N_DRAWS, PROBABLE = 4.0, 2, 4.0
CHANGE = 1e-7
"""Relative change of the weights that measures the sensitivities, in double precision."""
HALF_ROUNDINGS = 8
"""Roundings in a layer of bfloat16 or float16, whose sums are kept in fp32: operands, weights, products, output."""
N_ROUNDS = 6
"""Number of times that a step is measured in each precision."""

Results = dict[str, Tensor]
"""Loss, gradients and logits of a step, in double precision on the CPU."""


@dataclass(frozen=True)
class Example:
    """A network with random weights, and a batch for it, on the CPU."""

    network: Network
    inputs: dict[str, Tensor]
    labels: Tensor

    @property
    def row_length(self) -> int:
        """Number of terms in the longest product of the network."""
        return max(parameter.shape[-1] for parameter in self.network.parameters())


def example_of(
    config: ModelConfig, n_rows: int = N_ROWS, n_tokens: int = N_TOKENS, *, is_padded: bool = True
) -> Example:
    """Return a network of a configuration, in evaluation mode, and a batch for it; the same ones at each call.

    With `is_padded`, half of the first row is padding; otherwise the batch has no masks.

    No weight is 0 or 1, as biases and norms are at the start: a device that leaves them out is found.

    >>> from glassformer.config.presets import preset
    >>> example = example_of(preset("gpt2", n_layers=1, n_heads=2, d_model=8, vocab_size=11, max_len=16))
    >>> sorted(example.inputs), example.inputs["token_ids"].shape
    (['attention_mask', 'token_ids'], torch.Size([2, 16]))
    """
    config = _complete(config)
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_model(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))

    def tokens(vocab_size: int, max_len: int) -> tuple[Tensor, Tensor]:
        """Return random ids (B, T) and their mask: the second half of the first row is padding."""
        length = min(n_tokens, max_len)
        ids = torch.randint(vocab_size, (n_rows, length), generator=generator)
        real = torch.ones(n_rows, length, dtype=torch.bool)
        real[0, (length + 1) // 2 :] = False
        return ids, real

    # The batch
    is_encoder = isinstance(config, TransformerConfig) and config.decoder is None
    ids, real = tokens(config.vocab_size, config.encoder_max_len if is_encoder else config.max_len)
    inputs = {"token_ids": ids, "attention_mask": real}
    if isinstance(config, RecurrentConfig) or config.needs_source:
        sources = tokens(config.source_vocab_size or config.vocab_size, config.encoder_max_len)
        inputs |= dict(zip(("source_ids", "source_attention_mask"), sources, strict=True))
    # The labels
    if not is_padded:
        inputs, real = {name: x for name, x in inputs.items() if x.dtype != torch.bool}, real.new_ones(real.shape)
    head = getattr(config, "head", None)
    n_outputs = config.vocab_size
    if isinstance(head, PositionHead | SequenceHead):
        n_outputs = head.n_labels
    if isinstance(head, SequenceHead | VectorHead):
        return Example(network, inputs, torch.randint(max(1, n_outputs), (n_rows,), generator=generator))
    labels = torch.randint(n_outputs, ids.shape, generator=generator).masked_fill(~real, NOT_SCORED)
    return Example(network, inputs, labels)


def _complete(config: ModelConfig) -> ModelConfig:
    """Return the configuration with the numbers that data decide."""
    changes: dict[str, Any] = {}
    if not config.vocab_size:
        changes["vocab_size"] = DEFAULT_VOCAB
    head = getattr(config, "head", None)
    if isinstance(head, PositionHead | SequenceHead) and not head.n_labels:
        changes["head"] = replace(head, n_labels=2)
    return replace(config, **changes)


def small(config: ModelConfig, vocab_size: int = FEW_TOKENS) -> ModelConfig:
    """Return a large configuration with few layers, and at most `vocab_size` tokens: layers are alike, rows are, too.

    A configuration with at most `MAX_WEIGHTS` weights is returned unchanged.
    """
    config = _complete(config)
    if build_model(config, "meta").n_parameters() <= MAX_WEIGHTS:
        return config
    changes: dict[str, Any] = {"vocab_size": min(config.vocab_size, vocab_size)}
    changes["source_vocab_size"] = min(config.source_vocab_size, vocab_size)
    for name in SPECIAL_IDS:
        token = getattr(config, name)
        changes[name] = None if token is None else min(token, changes["vocab_size"] - 1)
    if isinstance(config, TransformerConfig):
        for name, stack in config.stacks.items():
            n_layers = max(FEW_LAYERS, len(stack.window_pattern or ()))
            changes[name] = replace(stack, n_layers=min(stack.n_layers, n_layers))
    return replace(config, **changes)


def results(example: Example, device: torch.device, dtype: torch.dtype, precision: str = "fp32") -> Results:
    """Return the loss, the gradients and the logits of generation, computed on a device.

    `dtype` is the type of the weights. With the precision bf16 or fp16, products are computed under autocast, as in a
    run.
    """
    network, inputs, labels = placed(example, device, dtype)
    with _as_in_a_run(device, precision):
        loss = loss_of(network, inputs, labels)
    loss.backward()
    found = {"the loss": loss.detach()}
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            found[f"the gradient of {name}"] = parameter.grad
    with torch.no_grad(), _as_in_a_run(device, precision):
        found |= dict(generated(network, inputs))
    return {name: x.to("cpu").double() for name, x in found.items()}


def placed(example: Example, device: torch.device, dtype: torch.dtype) -> tuple[Network, dict[str, Tensor], Tensor]:
    """Return a copy of the network, its inputs and its labels on a device."""
    network = copy.deepcopy(example.network).to(dtype).to(device)
    return network, {name: x.to(device) for name, x in example.inputs.items()}, example.labels.to(device)


def loss_of(network: nn.Module, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the labels; of a number or a vector, a mean of its elements with weights."""
    outputs = network(**inputs)
    if outputs.shape[-1] == 1 or isinstance(getattr(network.config, "head", None), VectorHead):
        return (outputs * torch.linspace(0.5, 1.0, outputs.shape[-1]).to(outputs)).mean()
    return token_cross_entropy(outputs, labels, labels.numel()).total / labels.numel()


def generated(network: Network, inputs: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the logits of the last tokens of the last row, which are read one at a time, with a cache of the others."""
    config = network.config
    if isinstance(config, TransformerConfig) and (config.decoder is None or config.reads_whole_sequence):
        return
    ids, source = inputs["token_ids"][-1:], [inputs[name][-1:] for name in inputs if name.startswith("source")]
    if isinstance(config, TransformerConfig) and config.reads_text_twice:
        source = [ids, inputs["attention_mask"][-1:]]
    if isinstance(getattr(config, "head", None), SequenceHead | VectorHead):
        return
    first = max(1, ids.shape[1] - N_WRITTEN)
    state: Any = network.start(1, ids.shape[1], *source)
    logits, state = network.step(ids[:, :first], state)
    for i in range(first, ids.shape[1]):
        yield f"the logits of generated token {i - first + 1}", logits[:, -1]
        logits, state = network.step(ids[:, i : i + 1], state)


@contextmanager
def _as_in_a_run(device: torch.device, precision: str) -> Iterator[None]:
    """Compute in a precision inside the block, as the steps of a run do."""
    dtype, before = autocast_dtype(precision), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        if dtype is None:
            yield
        else:
            with torch.autocast(device.type, dtype=dtype):
                yield
    finally:
        torch.set_float32_matmul_precision(before)


def roundoff(dtype: torch.dtype, n_terms: int) -> float:
    """Return the relative error of a sum of products of `n_terms` terms that is probably not exceeded.

    >>> round(roundoff(torch.float32, 256) / 2**-24)
    64
    """
    unit = torch.finfo(dtype).eps / 2
    if dtype in (torch.bfloat16, torch.float16):
        return HALF_ROUNDINGS * unit
    return PROBABLE * math.sqrt(n_terms) * unit


def exact(example: Example) -> Results:
    """Return the results in double precision."""
    return results(example, torch.device("cpu"), torch.float64)


def sensitivities(example: Example, true: Results) -> dict[str, float]:
    """Return how much each result changes if all weights change at random, per unit of their relative change.

    `true` are the exact results. A gradient may be a sum of terms that cancel, as that of a bias of keys. So a result
    changes at least as much as the largest one of its kind, relative to its size.
    """
    generator, changes = torch.Generator().manual_seed(1), dict.fromkeys(true, 0.0)
    for _ in range(N_DRAWS):
        changed = Example(copy.deepcopy(example.network).double(), example.inputs, example.labels)
        with torch.no_grad():
            for parameter in changed.network.parameters():
                signs = torch.randint(2, parameter.shape, generator=generator) * 2 - 1
                parameter.mul_(1 + CHANGE * signs)
        for name, x in exact(changed).items():
            changes[name] = max(changes[name], largest(x - true[name]) / CHANGE)
    kinds = {name: name.split(" of ")[0] for name in true}
    sizes = {kind: max(largest(x) for name, x in true.items() if kinds[name] == kind) for kind in set(kinds.values())}
    return {name: changes[name] + sizes[kinds[name]] for name in true}


def rounding(example: Example, precision: str) -> float:
    """Return the relative change of the weights that explains the rounding errors of a precision."""
    if precision == "tf32":  # factors have 10 bits after the point
        return PROBABLE * 2**-11
    return roundoff(autocast_dtype(precision) or torch.float32, example.row_length)


def largest(x: Tensor) -> float:
    """Return the largest magnitude; infinity if a number is missing (NaN)."""
    if not x.numel():
        return 0.0
    found = float(x.abs().max())
    return math.inf if math.isnan(found) else found


def difference(found: Results, true: Results, sensitivity: dict[str, float], relative: float) -> str:
    """Return which result is off by most, relative to its bound, in words; an empty text if none exceeds its bound.

    The bound of a result is its sensitivity, times the rounding errors `relative`, times `SAFETY`.
    """
    bounds = {name: SAFETY * relative * sensitivity[name] for name in true}
    if missing := true.keys() - found.keys():
        return f"{min(missing)} is missing"
    errors = {name: largest(found[name] - true[name]) for name in true}
    name = max(true, key=lambda name: errors[name] / bounds[name])
    if errors[name] <= bounds[name]:
        return ""
    return f"{name} is off by {errors[name]:.2g}, and rounding explains {bounds[name]:.1g}"


def step_seconds(example: Example, places: Sequence[tuple[torch.device, str]], n_rounds: int = N_ROUNDS) -> list[float]:
    """Return the time of a forward and backward pass for each device and precision: the shortest of some rounds.

    In a round, each of `places` has its turn, so that other work of the machine disturbs all of them. A first round
    does not count. If all places are on the CPU, a pass runs in one thread, and its time is the time of this thread on
    a core: then other work of the machine does not count.
    """
    on_cpu = all(device.type == "cpu" for device, _ in places)
    steps = [_timed_step(example, device, precision) for device, precision in places]
    clock, n_threads = time.thread_time if on_cpu else time.perf_counter, torch.get_num_threads()
    if on_cpu:
        torch.set_num_threads(1)
    try:
        rounds = [[step(clock) for step in steps] for _ in range(1 + n_rounds)]
    finally:
        torch.set_num_threads(n_threads)
    return [min(times) for times in zip(*rounds[1:], strict=True)]


def _timed_step(example: Example, device: torch.device, precision: str) -> Callable[[Callable[[], float]], float]:
    """Return a function of a clock that runs a pass on a device, and returns its time in seconds."""
    network, inputs, labels = placed(example, device, torch.float32)

    def step(clock: Callable[[], float]) -> float:
        began = clock()
        network.zero_grad(set_to_none=True)
        with _as_in_a_run(device, precision):
            loss = loss_of(network, inputs, labels)
        loss.backward()
        float(next(network.parameters()).grad.sum())  # type: ignore[union-attr]  # wait for the device
        return clock() - began

    return step
