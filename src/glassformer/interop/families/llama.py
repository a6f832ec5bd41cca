"""Llama (Touvron 2023), Mistral, Qwen2, Qwen3: pre-norm decoders with rotary positions, RMSNorm, gated feed-forward.

They differ in biases, attention windows and query/key norms. A norm without a scale also fits. A feed-forward without
a gate fits Llama, where it may have biases; with squared ReLUs it fits all four (`equivalent.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from glassformer.config.transformer import (
    MAX_LAYERS,
    Head,
    NormalInit,
    RotaryPositions,
    SequenceHead,
    Stack,
    TokenHead,
    TransformerConfig,
    VectorHead,
)
from glassformer.interop.compatibility import Compatibility
from glassformer.interop.equivalent import Recast, Weights, with_gates_of_one, with_norm_scales, with_relu2_as_gate
from glassformer.interop.families.rotary import fit_rotary, read_rotary, write_rotary
from glassformer.interop.family import Family, Rule, attention_lines, rule
from glassformer.interop.hf_config import HFConfig, settings, written
from glassformer.interop.vocabulary_files import qwen_byte_level

HEADS: dict[str, Head] = {
    "ForCausalLM": TokenHead(),
    "ForSequenceClassification": SequenceHead(pooling="last", bias=False),
    "Model": VectorHead(pooling="mean"),
}
"""Class name without the family → glassformer head."""
SIZES = settings(int, n_layers="num_hidden_layers", n_heads="num_attention_heads", d_ff="intermediate_size")
SETTINGS = settings(int, d_model="hidden_size", vocab_size="vocab_size", max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.0, attention_dropout="attention_dropout")
SETTINGS |= settings(bool, False, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "silu", activation="hidden_act")
FULL, SLIDING = "full_attention", "sliding_attention"
REPEATS = {"lm_head.weight": "model.embed_tokens.weight"}
DERIVED = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")


def read_common(
    hf: HFConfig,
    n_kv_heads: int = 0,
    d_head: int = 0,
    norm_eps: float = 1e-6,
    side: str = "decoder",
    **differences: Any,
) -> TransformerConfig:
    """Read the shared keys; the defaults are `n_kv_heads` (0 = n_heads), `d_head` (0 = D / n_heads) and `norm_eps`."""
    shared, sizes = hf.fields(SETTINGS), hf.fields(SIZES)
    n_heads = sizes["n_heads"]
    kv_heads = hf.maybe("num_key_value_heads", int)
    if kv_heads is None:  # null means n_heads; a missing key means the family's default
        kv_heads = n_heads if "num_key_value_heads" in hf.table else n_kv_heads or n_heads
    stack = Stack(
        n_kv_heads=kv_heads,
        d_head=hf.take("head_dim", int, d_head or shared["d_model"] // max(n_heads, 1)),
        window_pattern=differences.pop("window_pattern", ()),
        **sizes,
    )
    fields: dict[str, Any] = {side: stack, "qkv_bias": False, "attn_out_bias": False, "ff_bias": False} | differences
    return TransformerConfig(
        positions=read_rotary(hf, shared["max_len"]),
        norm="rmsnorm",
        norm_eps=hf.take("rms_norm_eps", float, norm_eps),
        gated_ff=True,
        init=NormalInit(0.02),
        **shared,
        **fields,
    )


def read_llama(hf: HFConfig, architecture: str) -> TransformerConfig:
    bias, ff_bias = hf.take("attention_bias", bool, False), hf.take("mlp_bias", bool, False)
    return read_common(hf, qkv_bias=bias, attn_out_bias=bias, ff_bias=ff_bias)


def read_mistral(hf: HFConfig, architecture: str) -> TransformerConfig:
    window = _window(hf)
    pattern = () if window is None else (window,)
    return read_common(hf, n_kv_heads=8, window_pattern=pattern)


def read_qwen2(hf: HFConfig, architecture: str) -> TransformerConfig:
    return read_common(hf, n_kv_heads=32, qkv_bias=True, window_pattern=_windows(hf))


def read_qwen3(hf: HFConfig, architecture: str) -> TransformerConfig:
    bias = hf.take("attention_bias", bool, False)
    windows = _windows(hf)
    return read_common(hf, 32, 128, qkv_bias=bias, attn_out_bias=bias, qk_norm=True, window_pattern=windows)


def _window(hf: HFConfig) -> int | None:
    """Return the attention window, in tokens; None = all."""
    window = hf.maybe("sliding_window", int)
    if "sliding_window" not in hf.table:
        window = 4096
    if window is not None and window < 1:
        hf.problem(f"sliding_window: expected at least 1, got {window}")
    return window


def _windows(hf: HFConfig) -> tuple[int, ...]:
    """Return `window_pattern`: windows in the layers from `max_window_layers` on, or in those of `layer_types`."""
    n_layers, first = hf.take("num_hidden_layers", int), hf.take("max_window_layers", int, 28)
    window = _window(hf) if hf.take("use_sliding_window", bool, False) else None
    hf.pass_over("sliding_window")
    kinds = hf.maybe("layer_types", list)
    if kinds is None:
        kinds = [FULL if window is None or i < first else SLIDING for i in range(min(n_layers, MAX_LAYERS))]
    if len(kinds) != n_layers or any(kind not in (FULL, SLIDING) for kind in kinds):
        hf.problem(f"layer_types must name {n_layers} layers, each {FULL} or {SLIDING}")
    if SLIDING in kinds and window is None:
        hf.problem(f"layer_types has {SLIDING}, but sliding_window is not used")
    return _shortest([window or 0 if kind == SLIDING else 0 for kind in kinds])


def _shortest(windows: Sequence[int]) -> tuple[int, ...]:
    """Return the shortest pattern whose repetition gives every layer its window; empty without windows.

    >>> _shortest([0, 4, 0, 4, 0]), _shortest([0, 0, 4]), _shortest([0, 0])
    ((0, 4), (0, 0, 4), ())
    """
    if not any(windows):
        return ()
    fitting = (n for n in range(1, len(windows) + 1) if all(x == windows[i % n] for i, x in enumerate(windows)))
    return tuple(windows[: next(fitting)])


def _windows_of(config: TransformerConfig) -> list[int]:
    """Return the window of each layer; 0 = all."""
    pattern = config.head_stack.window_pattern or (0,)
    return [pattern[i % len(pattern)] for i in range(config.head_stack.n_layers)]


def fit_common(config: TransformerConfig, *stack: str, any_ff: bool = False, side: str = "decoder") -> Compatibility:
    """Check the shared fields, except the head; `stack` names the optional stack fields that a family supports."""
    fit = Compatibility(config)
    for name in ("encoder", "decoder"):
        fit.stack(name, name == side, "n_kv_heads", "d_head", *stack)
    fit_rotary(fit, config)
    fit.need("norm", "rmsnorm")
    gated = config.gated_ff or config.activation == "relu2" or any_ff
    fit.check("gated_ff", gated, "model.gated_ff: expected true (or the activation relu2), got false")
    fit.holds("d_model", "tie_output", "norm_eps", "norm_weight", "norm_bias", "activation", "fused_qkv")
    return fit


def _fit(config: TransformerConfig, *stack: str, any_ff: bool = False) -> Compatibility:
    fit = fit_common(config, *stack, any_ff=any_ff)
    fit.heads(HEADS.values(), "none")
    return fit


def _need_one_window(fit: Compatibility, windows: set[int]) -> None:
    if fit.config.decoder is not None and len(windows) > 1:
        fit.misfits.append(f"model.decoder.window_pattern: expected equal windows, got {sorted(windows)}")


def _need_same_biases(fit: Compatibility) -> None:
    """Check that the two biases of attention are both present or both absent."""
    config = fit.config
    what = "model.qkv_bias and model.attn_out_bias must be equal"
    fit.check("qkv_bias", config.qkv_bias == config.attn_out_bias, what)
    fit.holds("attn_out_bias")


def fit_llama(config: TransformerConfig) -> list[str]:
    fit = _fit(config, any_ff=True)
    need_as_llama(fit)
    return fit.done()


def need_as_llama(fit: Compatibility) -> None:
    """Check what Llama and EuroBERT require: equal biases of attention, and d_model divisible by n_heads.

    Their configuration classes in transformers require the second for every head_dim.
    """
    if fit.config.d_model % fit.config.head_stack.n_heads:
        fit.misfits.append("model.d_model must be divisible by n_heads")
    _need_same_biases(fit)
    fit.holds("ff_bias")


def fit_mistral(config: TransformerConfig) -> list[str]:
    fit = _fit(config, "window_pattern")
    fit.needs(qkv_bias=False, attn_out_bias=False, ff_bias=False)
    _need_one_window(fit, set(_windows_of(config)))
    return fit.done()


def fit_qwen2(config: TransformerConfig) -> list[str]:
    fit = _fit(config, "window_pattern")
    fit.needs(qkv_bias=True, attn_out_bias=False, ff_bias=False)
    _need_one_window(fit, set(_windows_of(config)) - {0})
    return fit.done()


def fit_qwen3(config: TransformerConfig) -> list[str]:
    fit = _fit(config, "window_pattern")
    fit.needs(qk_norm=True, ff_bias=False)
    _need_same_biases(fit)
    _need_one_window(fit, set(_windows_of(config)) - {0})
    return fit.done()


def write_common(config: TransformerConfig) -> dict[str, Any]:
    """Return the keys that all have in common."""
    widths = config.attention_widths(config.head_stack)
    assert isinstance(config.positions, RotaryPositions)  # it fits
    return {
        **written(SETTINGS, config),
        **written(SIZES, config.head_stack),
        "num_key_value_heads": widths.n_kv_heads,
        "head_dim": widths.d_head,
        "rms_norm_eps": config.norm_eps,
        **write_rotary(config.positions),
    }


def write_llama(config: TransformerConfig) -> dict[str, Any]:
    return write_common(config) | {"attention_bias": config.qkv_bias, "mlp_bias": config.ff_bias}


def write_mistral(config: TransformerConfig) -> dict[str, Any]:
    return write_common(config) | {"sliding_window": _windows_of(config)[0] or None}


def write_qwen2(config: TransformerConfig) -> dict[str, Any]:
    windows = _windows_of(config)
    if not any(windows):
        return write_common(config) | {"use_sliding_window": False}
    return write_common(config) | {
        "use_sliding_window": True,
        "sliding_window": max(windows),
        "max_window_layers": next(i for i, window in enumerate(windows) if window),
        "layer_types": [SLIDING if window else FULL for window in windows],
    }


def write_qwen3(config: TransformerConfig) -> dict[str, Any]:
    return write_qwen2(config) | {"attention_bias": config.qkv_bias}


def table_llama(config: TransformerConfig) -> list[Rule]:
    side = "encoder" if config.decoder is None else "decoder"
    ours, theirs = f"{side}.blocks.{{i}}.", "model.layers.{i}."
    attn = f"{theirs}self_attn."
    return [
        rule(f"{side}.embeddings.tokens", "model.embed_tokens"),
        rule(f"{ours}self_attn_norm", f"{theirs}input_layernorm"),
        *attention_lines(config, f"{ours}self_attn", *(f"{attn}{name}_proj" for name in "qkvo")),
        *(rule(f"{ours}self_attn.{name}_norm", f"{attn}{name}_norm") for name in "qk"),
        rule(f"{ours}ff_norm", f"{theirs}post_attention_layernorm"),
        *(rule(f"{ours}ff.{name}_proj", f"{theirs}mlp.{name}_proj") for name in ("gate", "up", "down")),
        rule(f"{side}.final_norm", "model.norm"),
        rule("output.proj", "lm_head" if isinstance(config.head, TokenHead) else "score"),
    ]


def recast_common(config: TransformerConfig, weights: Weights) -> Recast:
    return with_relu2_as_gate(*with_norm_scales(config, weights))


def recast_llama(config: TransformerConfig, weights: Weights) -> Recast:
    return with_gates_of_one(*recast_common(config, weights))


def _family(
    name: str,
    read: Callable[[HFConfig, str], TransformerConfig],
    fit: Callable[[TransformerConfig], list[str]],
    write: Callable[[TransformerConfig], dict[str, Any]],
    **others: Any,
) -> Family:
    heads = {f"{name}{kind}": head for kind, head in HEADS.items()}

    def read_with_head(hf: HFConfig, architecture: str) -> TransformerConfig:
        return replace(read(hf, architecture), head=heads[architecture])

    common: dict[str, Any] = {"recast": recast_common, "repeats": REPEATS, "derived": DERIVED, "prefix": "model."}
    common |= {"bare": frozenset({f"{name}Model"}), "other_heads": {"vectors": ("lm_head.weight",)}}
    return Family(name, name.lower(), heads, read_with_head, fit, write, table_llama, **(common | others))


LLAMA = _family("Llama", read_llama, fit_llama, write_llama, recast=recast_llama)
MISTRAL = _family("Mistral", read_mistral, fit_mistral, write_mistral)
QWEN_ROLES = {"eos": "<|endoftext|>", "pad": "<|endoftext|>"}
QWEN2 = _family("Qwen2", read_qwen2, fit_qwen2, write_qwen2, builder=qwen_byte_level, roles=QWEN_ROLES)
QWEN3 = _family("Qwen3", read_qwen3, fit_qwen3, write_qwen3, builder=qwen_byte_level, roles=QWEN_ROLES)
