"""The module under test: a copy that the checks may change, and the rows that they feed it."""

import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.apps.doctor.adapter import Forward, Interface, Loss, MaskUse, Rows, call
from glassformer.common.errors import UserError, first_line

MIN_LEN = 6
MIN_VOCABULARY = 4
EXTRA = 2
"""Number of tokens below `max_len` that are reserved for padding or a continuation."""
PaddingSide = Literal["left", "right"]
Outcome = tuple[bool, str]
"""True if the check passed, and a sentence with the measured value."""


class NotApplicable(Exception):
    """Raised by a check that does not apply to the module; the message is the reason."""


@dataclass(frozen=True)
class Probe:
    """A copy of the module in eval mode, and the facts about it that the checks need.

    The copy computes in float64 if the module supports it, so that a rounding error is not reported as a fault.
    Parameters that are all zero are drawn at random, because a layer that adds nothing would hide its own faults.
    """

    module: nn.Module
    pristine: nn.Module
    """A copy with the module's own weights and dtype."""
    interface: Interface
    forward: Forward
    loss: Loss
    mask_use: MaskUse
    generator: torch.Generator
    n_ids: int = MIN_VOCABULARY
    """Number of ids that are valid as input and output. It is below the vocabulary size if a table has too few rows."""
    n_outputs: int = 0
    """Size of the last dimension of the logits."""
    tables: tuple[nn.Embedding, ...] = ()
    """The embeddings of `module` that receive the token ids. The function `measured` sets all fields with a default."""

    @property
    def source_vocab_size(self) -> int:
        return self.interface.source_vocab_size or self.interface.vocab_size

    @property
    def device(self) -> torch.device:
        return device_of(self.module)

    @cached_property
    def dtype(self) -> torch.dtype:
        return self.logits(self.rows(1)).dtype

    @property
    def length(self) -> int:
        """Length of an unpadded row."""
        return self.interface.max_len - EXTRA

    @property
    def tolerance(self) -> float:
        """Largest difference that counts as equal: √eps, far above rounding errors and far below a token's effect.

        It is at least 1e-6, because many modules compute angles and masks in float32 also with float64 weights.
        """
        return max(float(torch.finfo(self.dtype).eps ** 0.5), 1e-6)

    def need_mask(self) -> None:
        if self.mask_use == "none":
            raise NotApplicable("the module takes no attention_mask")

    def draw(self, *shape: int, n_ids: int | None = None) -> Tensor:
        """Draw random ids, never the padding id."""
        ids = self._drawable(n_ids or self.n_ids)
        return ids[torch.randint(len(ids), shape, generator=self.generator)].to(self.device)

    def other(self, token_ids: Tensor, n_ids: int | None = None) -> Tensor:
        """Draw random ids that differ from the given ones at every position."""
        ids = self._drawable(n_ids or self.n_ids)
        step = torch.randint(1, len(ids), token_ids.shape, generator=self.generator)
        return ids[(torch.searchsorted(ids, token_ids.cpu()) + step) % len(ids)].to(self.device)

    def _drawable(self, n_ids: int) -> Tensor:
        ids = torch.arange(n_ids)
        return ids if self.interface.pad_id is None else ids[ids != self.interface.pad_id]

    def rows(self, n_rows: int) -> Rows:
        """Draw random rows without padding; a source is one token shorter than its target."""
        source_ids = None
        if self.interface.kind == "encoder-decoder":
            source_ids = self.draw(n_rows, self.length - 1, n_ids=self.source_vocab_size)
        return self.plain(Rows(self.draw(n_rows, self.length), None, source_ids))

    def plain(self, rows: Rows) -> Rows:
        """Return the rows, with masks that are all True if the module requires masks."""
        return self.masked(rows) if self.mask_use == "required" else rows

    def masked(self, rows: Rows) -> Rows:
        """Return the rows with masks that are all True."""
        source_mask = None if rows.source_ids is None else torch.ones_like(rows.source_ids, dtype=torch.bool)
        return replace(rows, attention_mask=rows.real, source_attention_mask=source_mask)

    def uneven(self, rows: Rows, width: int, side: PaddingSide = "right", random_padding: bool = False) -> Rows:
        """Cut the last i % 3 tokens of row i and pad the row to `width`; do the same to sources, always on the right.

        The padding consists of the padding id, or of random ids: its content must have no effect.
        """

        def pad(ids: Tensor, width: int, side: PaddingSide, n_ids: int) -> tuple[Tensor, Tensor]:
            lengths = ids.shape[1] - torch.arange(len(ids), device=ids.device)[:, None] % 3
            index = torch.arange(width, device=ids.device)
            mask = index < lengths if side == "right" else index >= width - lengths
            padding = self.draw(len(ids), width, n_ids=n_ids)
            if not random_padding:
                padding.fill_(self.interface.pad_id or 0)
            padding[mask] = ids[torch.arange(ids.shape[1], device=ids.device) < lengths]
            return padding, mask

        target = pad(rows.token_ids, width, side, self.n_ids)
        if rows.source_ids is None:
            return Rows(*target)
        return Rows(*target, *pad(rows.source_ids, width, "right", self.source_vocab_size))

    def alone(self, rows: Rows) -> list[Rows]:
        """Return each row of `rows` as a batch of one, without its padding."""
        single = []
        for i in range(len(rows.token_ids)):
            ids, source_ids = rows.token_ids[i][rows.real[i]], None
            if rows.source_ids is not None and rows.source_attention_mask is not None:
                source_ids = rows.source_ids[i][rows.source_attention_mask[i]][None]
            single.append(self.plain(Rows(ids[None], None, source_ids)))
        return single

    def logits(self, rows: Rows, train: bool = False, seed: int = 0) -> Tensor:
        """Compute logits (B, T, V) without gradient. For rows of equal shape, equal seeds give equal dropout."""
        with torch.no_grad(), self.mode(train):
            seed_everything(seed)
            return self.logits_with_grad(rows)

    def loss_of(self, rows: Rows, module: nn.Module | None = None) -> tuple[Tensor, int]:
        """Compute (sum of nats, number of targets), with gradient. A loss of the user always gets masks."""
        if self.interface.loss is not None and rows.attention_mask is None:
            rows = self.masked(rows)
        total, n_targets = call(self.loss, module or self.module, rows)
        return total, int(n_targets)

    def logits_with_grad(self, rows: Rows) -> Tensor:
        logits = call(self.forward, self.module, rows)
        if logits.dim() != 3 or logits.shape[:2] != rows.token_ids.shape:
            raise UserError(
                f"expected logits (rows, length, vocabulary) for token ids {tuple(rows.token_ids.shape)}, "
                f"got {tuple(logits.shape)}: pass a forward=… that returns the logits of every position"
            )
        return logits

    @contextlib.contextmanager
    def mode(self, train: bool) -> Iterator[None]:
        """Use train mode in the block if `train`; after the block, restore the buffers (running statistics)."""
        if not train:
            yield
            return
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        self.module.train()
        try:
            yield
        finally:
            self.module.eval()
            for buffer, before in zip(self.module.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def changed(self, change: Callable[[nn.Module], None]) -> "Probe":
        """Return a probe of another copy of the module, after `change` has written to its parameters."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            change(module)
        return replace(self, module=module, tables=())

    def describe(self, worst: float, what: str) -> tuple[bool, str]:
        """Return whether the difference `worst` is within the tolerance, and a sentence with both numbers."""
        if worst == float("inf"):
            return False, "logits are not finite"
        dtype = str(self.dtype).removeprefix("torch.")
        detail = f"{what} by {worst:.1e} of their scale (allowed {self.tolerance:.0e}, {dtype})"
        return worst <= self.tolerance, detail


@dataclass(frozen=True)
class Check:
    """A property check: its name, the meaning of a failure, and its function."""

    name: str
    meaning: str
    run: Callable[[Probe], Outcome]


def means(meaning: str) -> Callable[[Callable[[Probe], Outcome]], Check]:
    """Return a decorator that makes a `Check` of a function; `meaning` describes the fault of a model that fails."""
    return lambda run: Check(run.__name__.replace("_", "-"), meaning, run)


def gap(value: Tensor, reference: Tensor) -> float:
    """Compute max |value - reference| / max |reference|; infinite if any value is not finite.

    >>> gap(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    0.25
    """
    if reference.numel() == 0:
        return 0.0
    if not (value.isfinite().all() and reference.isfinite().all()):
        return float("inf")
    scale = max(reference.abs().max().item(), torch.finfo(reference.dtype).tiny)
    return float((value - reference).abs().max().item() / scale)


def device_of(module: nn.Module) -> torch.device:
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def matrices(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights with two or more dimensions that are not embedding tables."""
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    return {name: p for name, p in module.named_parameters() if p.dim() >= 2 and id(p) not in tables}


def seed_everything(seed: int) -> None:
    """Seed the generators that a module may draw from."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # `torch.manual_seed` takes up to 20 ms for the devices that are missing
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Restore the states of Python's, NumPy's and PyTorch's generators after the block."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextlib.contextmanager
def on_copies_only(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a copy of the module; raise `UserError` if the original runs in the block, so that it stays unchanged."""
    try:
        pristine = copy.deepcopy(module)
    except Exception as error:
        raise UserError(
            f"the checks need a copy, and {type(module).__name__} cannot be copied: {first_line(error)}"
        ) from error

    def refuse(*_: object) -> None:
        raise UserError("forward, loss or fresh ran the original module: they must use the module that they receive")

    with module.register_forward_pre_hook(refuse):
        yield pristine


def measured(probe: Probe) -> Probe:
    """Run the module on a few small ids; return the probe with its token tables and the size of its logits.

    The new probe is in float64 if possible. Raises `UserError` if the module fails, or rows or vocabulary are too
    small.
    """
    max_len, vocab_size = probe.interface.max_len, probe.interface.vocab_size
    if max_len < MIN_LEN:
        raise UserError(f"max_len is {max_len}, and the checks need rows of at least {MIN_LEN} tokens")
    if vocab_size < MIN_VOCABULARY:
        raise UserError(f"vocab_size is {vocab_size}, and the checks need at least {MIN_VOCABULARY} ids")
    _awaken(probe.module)
    rows = probe.rows(2)
    try:
        probe.logits(rows)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the module could not be run on token ids {tuple(rows.token_ids.shape)} "
            f"({type(error).__name__}: {first_line(error)}): pass forward=lambda module, token_ids, …"
        ) from error
    with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):  # not every module and device has float64
        precise = replace(probe, module=copy.deepcopy(probe.module).double())
        if precise.logits(rows).dtype == torch.float64:
            probe = precise
    tables = _tables(probe, rows)
    n_outputs = probe.logits(rows).shape[-1]
    n_ids = min([vocab_size, n_outputs, *(table.num_embeddings for table in tables)])
    return replace(probe, tables=tables, n_outputs=n_outputs, n_ids=n_ids)


def _awaken(module: nn.Module) -> None:
    """Set eval mode, clear gradients, make parameters trainable, and draw the parameters that are all zero.

    A matrix is drawn from N(0, 1/fan in), a vector from N(0, 0.02²).
    """
    module.eval().zero_grad()
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
        if parameter.requires_grad and not parameter.any():
            std = parameter.shape[1] ** -0.5 if parameter.dim() >= 2 else 0.02
            parameter.data.normal_(std=std)


def _tables(probe: Probe, rows: Rows) -> tuple[nn.Embedding, ...]:
    """Return the embeddings that receive the token ids and return the same vector for equal ids.

    So a position table that receives the ids only for their shape is left out.
    """
    tables: list[nn.Embedding] = []

    def look(table: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ids = rows.token_ids
        if inputs and torch.equal(inputs[0], ids) and output.shape[:2] == ids.shape:
            vectors = [output[ids == token_id] for token_id in ids.unique()]
            if all(torch.equal(v, v[:1].expand_as(v)) for v in vectors):
                tables.append(cast(nn.Embedding, table))

    with contextlib.ExitStack() as hooks:
        for module in probe.module.modules():
            if isinstance(module, nn.Embedding):
                hooks.enter_context(module.register_forward_hook(look))
        probe.logits(rows)
    return tuple(dict.fromkeys(tables))
