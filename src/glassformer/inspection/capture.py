"""Named tensors of a forward pass: read, replace or store them without a change of the model's code.

Names are paths in the network. For the module at `PATH`, the tensor `PATH` is its output, and `PATH.input` is its first
input. The network itself passes the tensors below to a tap, a function of name and tensor (B batch, T queries, S keys,
H heads, G key-value heads, K and W widths per head, D width of the model):

| name | shape | tensor |
|---|---|---|
| `encoder.embeddings`, `decoder.embeddings` | (B, T, D) | residual stream before the first block |
| `decoder.blocks.0.self_attn.query`, `.key`, `.value` | (B, H, T, K), (B, G, S, K), (B, G, S, W) | projected heads |
| `decoder.blocks.0.self_attn.scores` | (B, H, T, S) | scores before the mask |
| `decoder.blocks.0.self_attn.weights` | (B, H, T, S) | weights after the softmax |
| `decoder.blocks.0.self_attn.context` | (B, H, T, W) | weights · values |
| `decoder.blocks.0.ff.activations` | (B, T, d_ff) | hidden layer of the feed-forward, input of its last projection |
| `decoder.blocks.0.ff.router` | (B, T, E) | with experts: weight of each expert for each token, 0 if it is not active |
| `decoder.blocks.0.residual` | (B, T, D) | residual stream after the block |
| `decoder.final` | (B, T, D) | output of the stack, after its final norm |
| `encoder.memory`, `decoder.hidden` | (B, S, C), (B, T, D) | states of a recurrent model |
| `encoder.cells.0.forward.keep`, `decoder.cells.0.keep` | (B, S, D), (B, T, D) | a gate of a recurrent layer |
| `hidden`, `logits` | (B, T, D), (B, T, V) | input and output of the head |

A GRU has the gates `reset`, `keep` and `new`, an LSTM `write`, `keep`, `new`, `read` and `cell` (`nn/recurrence.py`).
The gates and the `state` of an encoder are in the order of reading: "backward" begins with the last token.

`cross_attn` in place of `self_attn` is the attention to the source; a recurrent decoder has `decoder.cross_attn`. With
a tap, attention runs the readable formulas (`nn/attention.py`). Its results equal the fused kernel's up to rounding.
"""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import UserError, did_you_mean
from glassformer.config.transformer import RotaryPositions, TransformerConfig
from glassformer.inference.fill import MASK, WritingFiller
from glassformer.inspection.attention_maps import Kind, kind_of
from glassformer.models.devices import evaluation_mode
from glassformer.nn.attention import Tap
from glassformer.tasks.requirements import require_inputs
from glassformer.tasks.trained_model import TrainedModel
from glassformer.tokenization.tokenizer import Tokenizer

Hook = Callable[[str, Tensor], Tensor | None]
"""Function that gets a name and a tensor, and returns a tensor in its place, or None to keep it."""

STANDARD = (
    *("*.embeddings", "*.query", "*.key", "*.value", "*.scores", "*.weights", "*.context", "*_norm", "*_attn"),
    *("*.ff", "*.ff.activations", "*.ff.router", "*.residual", "*.final"),
    *("*.memory", "*.hidden", "*.cells.*", "hidden", "logits"),
)
"""Names that `capture` stores by default."""
FLOW = (*STANDARD, "*.embeddings.tokens", "*.embeddings.positions", "*_norm.input")
"""Names for the inspector's drawing of the data flow: also the parts of an embedding and the inputs of norms."""
MOST_CELLS = 20_000
"""Largest number of attention weights that a notebook draws."""
MAX_BYTES = 2 << 30
"""Largest trace in bytes."""
_METHODS = ("forward", "hidden", "encode", "step")


@contextlib.contextmanager
def model_hooks(model: TrainedModel | nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """Call hooks with the named tensors of every forward pass inside the `with` block.

    A key of `hooks` is a name, or a pattern such as `decoder.blocks.*.self_attn.weights`. A hook returns None, or a
    tensor that replaces the named tensor, and that is converted to the same dtype and device. Hooks act in all methods
    of the model. If several hooks match, each receives the result of the previous hook. Hooks of an outer block come
    first. Raises `UserError` for an ensemble, and at the end of the block if a pattern matched no tensor.

    ```python
    def without_head_3(name, context):  # (B, H, T, W)
        return context.index_fill(1, torch.tensor([3]), 0.0)

    with model_hooks(model, {"decoder.blocks.0.self_attn.context": without_head_3}):
        print(model.generate("ROMEO:"))
    ```
    """
    network = network_of(model)
    unused, names = set(hooks), set[str]()

    def call(name: str, x: Tensor) -> Tensor:
        names.add(name)
        for pattern, hook in hooks.items():
            if fnmatchcase(name, pattern):
                unused.discard(pattern)
                replaced = hook(name, x)
                if replaced is None:
                    continue
                if replaced.shape != x.shape:
                    raise ValueError(f"{name}: expected shape {tuple(x.shape)}, got {tuple(replaced.shape)}")
                x = replaced.to(x)
        return x

    with contextlib.ExitStack() as stack:
        stack.enter_context(_tapped(network, _HookTap(call, hooks)))
        for path, module in network.named_modules():
            if path and not path.endswith("embeddings"):  # the tap receives the output of embeddings
                stack.callback(module.register_forward_pre_hook(_on_input(path, call)).remove)
                stack.callback(module.register_forward_hook(_on_output(path, call)).remove)
        yield
    _require_matches(unused, names)


def network_of(model: TrainedModel | nn.Module) -> nn.Module:
    """Return the network of a model, or the network itself; raise `UserError` for an ensemble."""
    if isinstance(model, nn.Module):
        return model
    if len(model.members) > 1:
        raise UserError("an ensemble has several networks: load one of its models")
    return model.network


@dataclass(frozen=True)
class _HookTap:
    """A tap that calls a function with full names."""

    call: Callable[[str, Tensor], Tensor]
    patterns: Collection[str]
    prefix: str = ""

    def __call__(self, name: str, x: Tensor) -> Tensor:
        return self.call(self.prefix + name, x)

    def scope(self, name: str) -> "_HookTap | None":
        prefix = f"{self.prefix}{name}."
        if not any(_may_match(pattern, prefix) for pattern in self.patterns):
            return None
        return _HookTap(self.call, self.patterns, prefix)


def _may_match(pattern: str, prefix: str) -> bool:
    """Return False if no name with this prefix matches the pattern.

    >>> [_may_match(pattern, "decoder.blocks.1.") for pattern in ("*.weights", "decoder.blocks.1.ff", "decoder.final")]
    [True, True, False]
    """
    begin = re.split(r"[*?[]", pattern)[0]
    return begin.startswith(prefix) or (begin != pattern and prefix.startswith(begin))


@dataclass(frozen=True)
class _Chain:
    first: Tap
    second: Tap

    def __call__(self, name: str, x: Tensor) -> Tensor:
        return self.second(name, self.first(name, x))

    def scope(self, name: str) -> Tap | None:
        first, second = self.first.scope(name), self.second.scope(name)
        if first is None or second is None:
            return first or second
        return _Chain(first, second)


@contextlib.contextmanager
def _tapped(network: nn.Module, tap: Tap) -> Iterator[None]:
    """Pass the tap to each method of the network that accepts a tap, whoever calls the method."""
    inside = False  # a method that calls another one passes its tap on

    def tapped(method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        nonlocal inside
        if inside:
            return method(*args, **named)
        inner, inside = named.get("tap"), True
        named["tap"] = tap if inner is None else _Chain(tap, inner)
        try:
            return method(*args, **named)
        finally:
            inside = False

    methods = {name: getattr(network, name) for name in _METHODS if _takes_tap(getattr(network, name, None))}
    before = {name: network.__dict__[name] for name in methods if name in network.__dict__}
    for name, method in methods.items():
        setattr(network, name, functools.wraps(method)(functools.partial(tapped, method)))
    try:
        yield
    finally:
        for name in methods:
            delattr(network, name)
        network.__dict__.update(before)


def _takes_tap(method: Callable[..., Any] | None) -> bool:
    return method is not None and "tap" in inspect.signature(method).parameters


def _on_input(path: str, call: Callable[[str, Tensor], Tensor]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
        name = f"{path}.input".replace(".ff.down_proj.input", ".ff.activations")
        if path == "output":
            name = "hidden"
        if args and isinstance(args[0], Tensor):
            return call(name, args[0]), *args[1:]
        return None

    return hook


def _on_output(path: str, call: Callable[[str, Tensor], Tensor]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        name = "logits" if path == "output" else path
        if isinstance(output, Tensor):
            return call(name, output)
        return None

    return hook


def _require_matches(unused: Collection[str], names: Collection[str]) -> None:
    """Raise `UserError` if a pattern matched no name of the passes."""
    if unused and names:
        pattern = min(unused)
        raise UserError(f"no tensor of the model has the name {pattern!r}: {did_you_mean(pattern, names)}")


def capture_tensors(
    network: nn.Module, inputs: Mapping[str, Tensor], names: Sequence[str] = STANDARD
) -> dict[str, Tensor]:
    """Run `network(**inputs)` without dropout; return the float tensors whose names match, in fp32 on the CPU.

    A recurrent decoder runs step by step; its steps are concatenated along T. Raises `UserError` if the tensors exceed
    `MAX_BYTES`, or if a name without `*` does not exist.
    """
    n_bytes = 0

    def copied(name: str, x: Tensor) -> Tensor:
        nonlocal n_bytes
        n_bytes += 4 * x.numel()
        if n_bytes > MAX_BYTES:
            raise UserError(f"the trace has more than {MAX_BYTES:,} bytes at {name}: choose fewer names or layers")
        return x.detach().to("cpu", torch.float32, copy=True)

    tensors, all_names = _kept(network, inputs, names, copied)
    if names is not STANDARD:
        _require_matches({name for name in names if "*" not in name} - all_names, all_names)
    return tensors


def tensor_shapes(
    network: nn.Module, inputs: Mapping[str, Tensor], names: Sequence[str] = STANDARD
) -> dict[str, tuple[int, ...]]:
    """Return the shapes (without batch) of the tensors of `capture_tensors`, in the order of the computation."""
    # An expanded tensor needs the memory of one number; a recurrent decoder concatenates those of its steps
    empty, _ = _kept(network, inputs, names, lambda name, x: x.new_empty(()).expand(x.shape))
    return {name: tuple(x.shape if name.endswith(".positions") else x.shape[1:]) for name, x in empty.items()}


@torch.no_grad()
def _kept(
    network: nn.Module, inputs: Mapping[str, Tensor], names: Sequence[str], keep: Callable[[str, Tensor], Tensor]
) -> tuple[dict[str, Tensor], set[str]]:
    """Run the network; return `keep(name, x)` of the float tensors whose names match, and the names of all tensors."""
    steps, all_names = dict[str, list[Tensor]](), set[str]()

    def store(name: str, x: Tensor) -> None:
        all_names.add(name)
        if x.is_floating_point() and any(fnmatchcase(name, pattern) for pattern in names):
            steps.setdefault(name, []).append(keep(name, x))

    has_patterns = any("*" in name for name in names)
    hooks = {"*": store} if has_patterns else dict.fromkeys(names, store)
    with evaluation_mode(network), model_hooks(network, hooks):
        network(**inputs)
    return {name: _joined(parts) for name, parts in steps.items()}, all_names


def _joined(steps: Sequence[Tensor]) -> Tensor:
    """Concatenate the steps (B, …, 1, ·) of a recurrent model, or stack steps (B, ·) to (B, T, ·)."""
    if len(steps) == 1:
        return steps[0]
    if steps[0].ndim == 2:
        return torch.stack(list(steps), dim=1)
    return torch.cat(list(steps), dim=-2)


LENS_NAMES = {
    "hook_resid_post": "residual",
    "hook_attn_out": "self_attn",
    "hook_mlp_out": "ff",
    "ln1.hook_normalized": "self_attn_norm",
    "ln2.hook_normalized": "ff_norm",
    "attn.hook_q": "self_attn.query",
    "attn.hook_k": "self_attn.key",
    "attn.hook_rot_q": "self_attn.query",
    "attn.hook_rot_k": "self_attn.key",
    "attn.hook_v": "self_attn.value",
    "attn.hook_z": "self_attn.context",
    "attn.hook_pattern": "self_attn.weights",
    "mlp.hook_post": "ff.activations",
}
"""Names of the tensors of a block in TransformerLens, and here."""


def of_transformer_lens(name: str | tuple[str, int]) -> tuple[str, bool]:
    """Return a name of TransformerLens as a name here without the stack, and whether heads and positions change places.

    TransformerLens has the heads after the positions, (B, T, H, K). `("pattern", 0)` is short for a hook of block 0.

    >>> of_transformer_lens("blocks.1.attn.hook_q"), of_transformer_lens("blocks.1.hook_resid_pre")
    (('blocks.1.self_attn.query', True), ('blocks.0.residual', False))
    >>> of_transformer_lens(("pattern", 0))
    ('blocks.0.self_attn.weights', False)
    """
    if not isinstance(name, str) and not (isinstance(name, tuple) and len(name) > 1):
        return str(name), False
    if isinstance(name, tuple):
        hooks = [hook for hook in (*LENS_NAMES, "hook_resid_pre") if hook.endswith(f"hook_{name[0]}")]
        name = f"blocks.{name[1]}.{next(iter(hooks), name[0])}"
    if name == "ln_final.hook_normalized":
        return "final", False
    _, _, rest = name.partition(".")
    layer, _, hook = rest.partition(".")
    if hook == "hook_resid_pre" and layer.isdigit():
        return (f"blocks.{int(layer) - 1}.residual" if int(layer) else "embeddings"), False
    here = LENS_NAMES.get(hook)
    turns = hook.startswith("attn.") and here is not None and not here.endswith(".weights")
    return (name if here is None else f"blocks.{layer}.{here}"), turns


@dataclass(frozen=True)
class Trace(Mapping[str, Tensor]):
    """Named tensors of one text or one pair, with the inputs and the tokens along their axes."""

    tensors: dict[str, Tensor]
    inputs: dict[str, Tensor]
    """Arguments of the network: `token_ids` (1, T), and `source_ids` (1, S) of an encoder-decoder."""
    source: list[str]
    """Input tokens of the encoder, or of the only stack."""
    target: list[str]
    """Input tokens of the decoder, or of the only stack."""
    written: list[str]
    """Next token at each position of `target` of an encoder-decoder; empty for other models."""
    is_rotated: bool = False
    """True if queries and keys are rotated or normalised: TransformerLens calls them `hook_rot_q` and `hook_rot_k`."""

    def __getitem__(self, name: str | tuple[str, int]) -> Tensor:
        """Return a tensor by its name here or in TransformerLens (`of_transformer_lens`); else raise `KeyError`."""
        if name in self.tensors:
            return self.tensors[str(name)]
        here, turns = of_transformer_lens(name)
        if self.is_rotated and here.endswith((".query", ".key")) and "rot" not in str(name):
            raise KeyError(
                f"the trace has queries and keys after their rotation: use hook_rot_q and hook_rot_k, not {name!r}"
            )
        for stack in ("", "decoder.", "encoder."):
            if (x := self.tensors.get(stack + here)) is not None:
                return x.transpose(1, 2) if turns else x
        raise KeyError(f"the trace has no tensor {name!r}: {did_you_mean(name, self.tensors)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *error: object) -> None:
        """Release the tensors at the end of a `with` block."""
        self.tensors.clear()

    def __repr__(self) -> str:
        n_bytes = sum(4 * x.numel() for x in self.tensors.values())
        return f"Trace of {len(self.target)} tokens: {len(self)} tensors, {n_bytes:,} bytes"

    def axes(self, kind: Kind) -> tuple[list[str], list[str]]:
        """Return the tokens of the rows and columns of attention weights; a cross-attention row has the next token."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.target, self.target),
            "cross": (self.written, self.source),
        }[kind]

    def _repr_svg_(self) -> str | None:
        """Return the maps of all heads (`notebook.head_maps`), at most `MOST_CELLS` cells; None without weights."""
        found, n_cells = list[notebook.Layer](), 0
        for name, weights in self.items():
            if name.endswith(".weights") and (n_cells := n_cells + weights[0].numel()) <= MOST_CELLS:
                found.append(notebook.Layer(name, weights[0].tolist(), *self.axes(kind_of(name))))
        return notebook.head_maps(found) if found else None

    def _repr_html_(self) -> str:
        """Return `_repr_svg_` for notebooks, where the pointer shows the weights."""
        n_layers, shown = sum(name.endswith(".weights") for name in self), self._repr_svg_()
        if shown is None:
            return repr(self) + (
                ": too many weights to draw; glassformer.plot.attention draws a layer" * bool(n_layers)
            )
        n_drawn = shown.count(": rows are queries")
        more = f"<p>{n_drawn} of {n_layers} layers; glassformer.plot.attention draws the others.</p>"
        return f'<div style="overflow-x: auto">{shown}</div>' + more * (n_drawn < n_layers)


def capture(
    model: TrainedModel,
    text: str | Sequence[int] | None = None,
    *,
    source: str | Sequence[int] | None = None,
    target: str | Sequence[int] | None = None,
    names: Sequence[str] = STANDARD,
) -> Trace:
    """Run a model once over a text, or over a source and a target, and return the named tensors.

    A text is tokenized as in training, and `[MASK]` is a mask for a model that fills masks. Ids are read unchanged, so
    the ids of a target must begin with the start token. An encoder-decoder reads a source and a target. The default
    target is the model's own output. `names` chooses tensors: `decoder.blocks.3.*` are all tensors of block 3.

    ```python
    trace = capture(model, "ROMEO: what is a name?", names=["*.weights", "logits"])
    trace["decoder.blocks.0.self_attn.weights"]  # (1, H, T, T)
    ```

    Raises `UserError` for a text without words or with more tokens than the model reads.
    """
    trace = encoded(model, text, source=source, target=target)
    return replace(trace, tensors=capture_tensors(model.network, trace.inputs, names))


def encoded(
    model: TrainedModel,
    text: str | Sequence[int] | None = None,
    *,
    source: str | Sequence[int] | None = None,
    target: str | Sequence[int] | None = None,
    cuts: bool = False,
) -> Trace:
    """Return the trace of `capture` before the run: inputs and tokens, without tensors.

    `cuts` leaves out the end of a text that is too long. Raises `UserError` for an ensemble.
    """
    network_of(model)
    require_inputs(model.network.config, model.name, text=text, source=source, target=target)
    if source is not None:
        return _encoded_pair(model, source, target, cuts)
    assert text is not None  # `require_inputs`
    if isinstance(text, str):
        _require_words("text", text)
        text = _text_ids(model, text)
    ids, max_len = list(text), model.network.config.max_len
    if cuts:
        ids = ids[:max_len]
    _check_ids("text", ids, model.tokenizer, max_len)
    tokens = model.tokenizer.tokens(ids)
    inputs = {"token_ids": torch.tensor([ids], device=model.device)}
    return Trace({}, inputs, tokens, tokens, [], _is_rotated(model))


def _is_rotated(model: TrainedModel) -> bool:
    config = model.network.config
    is_rotary = isinstance(config, TransformerConfig) and isinstance(config.positions, RotaryPositions)
    return is_rotary or bool(getattr(config, "qk_norm", False))


def _text_ids(model: TrainedModel, text: str) -> list[int]:
    """Return the ids that a model with one stack reads; `[MASK]` is a mask for a model that fills masks."""
    if MASK in text and (filler := model.task.filler(model)) is not None:
        return filler.ids(text)
    return model.text_ids(text)


def _encoded_pair(
    model: TrainedModel, source: str | Sequence[int], target: str | Sequence[int] | None, cuts: bool
) -> Trace:
    translator, max_len, filler = model.translator, model.network.config.max_len, None
    # 1. The ids of the source; the filler encodes a source with masks.
    if isinstance(source, str):
        _require_words("source", source)
        if MASK in source:
            filler = model.task.filler(model)
        source = translator.source_ids(source) if filler is None else filler.ids(source)
    source_ids = list(source)
    if cuts:
        source_ids = source_ids[: translator.source_max_len]
    _check_ids("source", source_ids, model.source_tokenizer, translator.source_max_len)
    # 2. The ids of the target, by default the model's own output.
    if target is None and isinstance(filler, WritingFiller):
        target = [translator.start_id, *filler.write(source_ids)][:max_len]
    elif target is None:
        [[best]] = translator.translate_ids([source_ids], translator.beam({}))
        target = translator.target_ids(best.text)[:max_len]
    target_ids = translator.target_ids(target) if isinstance(target, str) else list(target)
    if cuts:
        target_ids = target_ids[:max_len]
    _check_ids("target", target_ids, model.tokenizer, max_len)
    # 3. The inputs, and the tokens along the axes.
    written = [*target_ids[1:], translator.end_id]
    inputs = {
        "token_ids": torch.tensor([target_ids], device=model.device),
        "source_ids": torch.tensor([source_ids], device=model.device),
    }
    tokens = model.tokenizer.tokens
    return Trace(
        {}, inputs, model.source_tokenizer.tokens(source_ids), tokens(target_ids), tokens(written), _is_rotated(model)
    )


def _require_words(what: str, text: str) -> None:
    if not text.strip():
        raise UserError(f"the {what} is empty: give a text with at least one word")


def _check_ids(what: str, ids: Sequence[int], tokenizer: Tokenizer, max_len: int) -> None:
    if not ids:
        raise UserError(f"the {what} is empty: give at least one token")
    if len(ids) > max_len:
        raise UserError(f"the {what} has {len(ids)} tokens and the model reads at most {max_len}: shorten it")
    if not 0 <= min(ids) <= max(ids) < len(tokenizer):
        raise UserError(f"the {what} has an id outside the vocabulary, whose ids are 0 to {len(tokenizer) - 1}")
