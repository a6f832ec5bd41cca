"""Export to CTranslate2, which translates and generates fast on CPUs; the export is checked by running it.

The specification is filled from glassformer's modules, not from a family of transformers. So it supports models with
their own start token, with two vocabularies, or with Vaswani's interleaved sinusoids.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.config import transformer as c
from glassformer.data.batching import pad
from glassformer.errors import UserError, needs
from glassformer.inference.score import forced_scores
from glassformer.interop.compatibility import differences
from glassformer.interop.hf import transformer_of
from glassformer.interop.tokenizer_files import row_names, trained_start, write_tokenizers
from glassformer.models.blocks import Block
from glassformer.models.heads import TokenLogits
from glassformer.models.stacks import Decoder, Encoder
from glassformer.models.transformer import Transformer
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.positions import RelativeBias, Rotary, rotary_frequencies
from glassformer.store.model_directory import StoredModel

TOLERANCE = 1e-4
"""Allowed difference of outputs, × max(1, largest value): the effect of the order of summation in fp32."""
N_ROWS, N_TOKENS = 20, 12
"""Number of random rows that are compared, and their length."""
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "relu2": "RELU"}
"""glassformer → CTranslate2. (A squared ReLU is a ReLU that is gated by its own input: relu(x)² = relu(x) · x.)"""
IN_AN_ENCODER = ("sinusoidal", "learned", "none", "rotary", "relative")
IN_A_DECODER = ("sinusoidal", "learned", "none", "rotary", "alibi")
"""Positions that CTranslate2 supports. (In a decoder-only model, it gives a prompt wrong relative biases; with an
encoder, it processes targets token by token, which is correct.)"""

SUPPORTED = """
d_model source_vocab_size source_max_len n_token_types share_embeddings tie_output positions norm norm_eps norm_weight
norm_bias norm_order final_norm embedding_norm qk_norm activation gated_ff qkv_bias attn_out_bias ff_bias
attention_scale scale_embeddings scale_logits head
"""
"""Settings that may have any value, except those that `misfits` names."""


def write_ct2(stored: StoredModel, folder: Path) -> list[str]:
    """Write CTranslate2's files and the tokenizers, run them and compare; return the lines of the report.

    Raises `UserError` if CTranslate2 does not support the model, or if its outputs differ.
    """
    with needs("the export to CTranslate2", "export"):
        import ctranslate2 as ct2
    config, network = transformer_of(stored, "CTranslate2")
    if wrong := misfits(config):
        raise UserError(f"CTranslate2 cannot compute this model exactly: {'; '.join(wrong)}")
    network = network.cpu().eval()
    spec = specify(ct2, network)
    _name_tokens(spec, stored, config)
    spec.validate()
    spec.optimize()  # finds tied weights, to write them once
    spec.save(str(folder))
    write_tokenizers(stored, folder)
    n_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return [f"{spec.name}: {n_bytes:,} bytes", *_compare(ct2, folder, stored, config, network)]


def _name_tokens(spec: Any, stored: StoredModel, config: c.TransformerConfig) -> None:
    """Set the vocabularies, the special tokens and the epsilon of norms, which are stored in separate files."""
    tokenizer, source = stored.tokenizers.target, stored.tokenizers.source
    targets = row_names(tokenizer, config.vocab_size)
    spec.config.layer_norm_epsilon = config.norm_eps
    end = _end_id(stored, config)
    # Without an unknown token, CTranslate2 would add one to the vocabulary, and the table has no row for it.
    for name, token_id in (("unk", tokenizer.unk_id), ("bos", trained_start(stored)), ("eos", end)):
        if hasattr(spec.config, f"{name}_token"):
            setattr(spec.config, f"{name}_token", targets[end if token_id is None else token_id])
    if not config.is_encoder_decoder:
        spec.register_vocabulary(targets)
        return
    if config.decoder_start_id is None:
        raise UserError("model.decoder_start_id is missing: CTranslate2 needs the token that starts a target")
    spec.config.decoder_start_token = targets[config.decoder_start_id]
    spec.register_source_vocabulary(row_names(source, config.encoder_vocab_size))
    spec.register_target_vocabulary(targets)


def _end_id(stored: StoredModel, config: c.TransformerConfig) -> int:
    end = stored.tokenizers.target.eos_id if config.eos_id is None else config.eos_id
    if end is not None:
        return end
    if config.decoder is not None:
        raise UserError("this model has no end token, and CTranslate2 needs one")
    return 0  # not used: an encoder generates no text


@torch.inference_mode()
def _compare(
    ct2: ModuleType, folder: Path, stored: StoredModel, config: c.TransformerConfig, network: Transformer
) -> list[str]:
    """Run the folder and compare; return the lines of the report, or raise `UserError` if outputs differ."""
    options = {"device": "cpu", "compute_type": "float32", "inter_threads": 1, "intra_threads": 1}
    if config.decoder is None:
        return _compare_encoder(ct2.Encoder(str(folder), **options), config, network)
    if config.encoder is None:
        return _compare_decoder(ct2.Generator(str(folder), **options), config, network, stored)
    return _compare_translator(ct2.Translator(str(folder), **options), config, network, stored)


def _compare_encoder(model: Any, config: c.TransformerConfig, network: Transformer) -> list[str]:
    rows = _random_rows(range(config.vocab_size), min(N_TOKENS, config.max_len))
    ids, mask = pad(rows, 0)
    types = types_of_rows = None
    if config.n_token_types:
        types = ids % config.n_token_types
        types_of_rows = [kinds[: len(row)] for kinds, row in zip(types.tolist(), rows, strict=True)]
    outputs = model.forward_batch(rows, token_type_ids=types_of_rows)
    ours = network.hidden(ids, mask, token_types=types)
    theirs = torch.from_numpy(np.array(outputs.last_hidden_state))
    difference = _require_close(theirs[mask], ours[mask], "hidden states")
    return [f"run in CTranslate2: hidden states differ by at most {difference:.1e}; its encoders have no head"]


def _compare_decoder(model: Any, config: c.TransformerConfig, network: Transformer, stored: StoredModel) -> list[str]:
    n_tokens = min(N_TOKENS, max(1, config.max_len // 2))
    rows = _random_rows(range(config.vocab_size), n_tokens, same_length=True)
    logits = torch.from_numpy(np.array(model.forward_batch(rows)))
    difference = _require_close(logits, network(torch.tensor(rows)), "logits")
    names = row_names(stored.tokenizers.target, config.vocab_size)
    n_new = min(N_TOKENS, config.max_len - n_tokens)
    if n_new:
        results = model.generate_batch(
            [[names[i] for i in row] for row in rows],
            max_length=n_new,
            include_prompt_in_result=False,
            return_end_token=True,
        )
        for row, result in zip(rows, results, strict=True):
            new = result.sequences_ids[0]
            _require_best(network(torch.tensor([row + new]))[0, len(row) - 1 : -1], new)
    return [
        f"run in CTranslate2: logits differ by at most {difference:.1e}",
        f"{len(rows)} continuations: every token is glassformer's most probable one",
    ]


def _compare_translator(
    model: Any, config: c.TransformerConfig, network: Transformer, stored: StoredModel
) -> list[str]:
    # Random sources and targets
    source_tokenizer = stored.tokenizers.source
    source_names = row_names(source_tokenizer, config.encoder_vocab_size)
    special = set(source_tokenizer.special_tokens)  # CTranslate2 treats a source of these as empty
    ordinary = [i for i, name in enumerate(source_names) if name not in special]
    sources = _random_rows(ordinary, min(N_TOKENS, config.encoder_max_len))
    targets = _random_rows(range(config.vocab_size), min(N_TOKENS, config.max_len - 1), seed=1)
    names = row_names(stored.tokenizers.target, config.vocab_size)
    ids = {name: i for i, name in enumerate(names)}
    source_tokens = [[source_names[i] for i in row] for row in sources]
    start, end = config.decoder_start_id, _end_id(stored, config)
    assert start is not None  # `_name_tokens` has checked it
    # Log-probabilities of the targets
    scored = model.score_batch(source_tokens, [[names[i] for i in row] for row in targets], max_input_length=0)
    ours = forced_scores(network, sources, [[*row, end] for row in targets], start_id=start)
    theirs = torch.tensor([x for result in scored for x in result.log_probs])
    log_probs = torch.tensor([x for score in ours for x in score.token_log_probs])
    difference = _require_close(theirs, log_probs, "log-probabilities")
    # Greedy targets
    results = model.translate_batch(
        source_tokens,
        beam_size=1,
        min_decoding_length=0,  # the default allows no empty target
        max_decoding_length=min(N_TOKENS, config.max_len),
        return_end_token=True,
        max_input_length=0,
    )
    for row, result in zip(sources, results, strict=True):
        new = [ids[name] for name in result.hypotheses[0]]
        _require_best(network(torch.tensor([[start, *new[:-1]]]), source_ids=torch.tensor([row]))[0], new)
    return [
        f"run in CTranslate2: log-probabilities of {len(theirs)} tokens differ by at most {difference:.1e}",
        f"{len(sources)} greedy targets: every token is glassformer's most probable one",
    ]


def _random_rows(ids: Sequence[int], n_tokens: int, seed: int = 0, same_length: bool = False) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    lengths = np.full(N_ROWS, n_tokens) if same_length else draw.integers(1, n_tokens + 1, N_ROWS)
    return [draw.choice(ids, size=n).tolist() for n in lengths]


def _require_close(theirs: Tensor, ours: Tensor, what: str) -> float:
    difference = float((theirs - ours).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(ours.abs().max())):
        raise UserError(f"the {what} of CTranslate2 differ by {difference:.2e}: nothing was exported")
    return difference


def _require_best(logits: Tensor, chosen: list[int]) -> None:
    """Raise `UserError` unless each token has the highest logit, up to rounding."""
    missed = logits.max(dim=-1).values - logits[torch.arange(len(chosen)), torch.tensor(chosen)]
    if not float(missed.max()) <= TOLERANCE * max(1.0, float(logits.abs().max())):
        raise UserError("CTranslate2 generates other tokens than this model: nothing was exported")


def misfits(config: c.TransformerConfig) -> list[str]:
    """Return the reasons why CTranslate2 cannot compute a configuration; empty if it can."""
    # Settings with any value, and those with several
    expected = {name: getattr(config, name) for name in SUPPORTED.split()}
    for name, stack in config.stacks.items():
        expected[name] = replace(stack, d_value=0, window_pattern=())
    found = differences(config, expected)
    # Settings that depend on each other
    kinds = IN_A_DECODER if config.encoder is None else IN_AN_ENCODER
    positions, head = config.positions, config.head
    if positions.kind not in kinds:
        found.append(f"model.positions: expected {' or '.join(kinds)}, got {positions.kind}")
    is_partial = isinstance(positions, c.RotaryPositions) and positions.fraction != 1
    scaling = getattr(positions, "scaling", None)
    if is_partial and isinstance(scaling, c.YarnScaling | c.LongRopeScaling):
        found.append(f"model.positions.fraction: expected 1 with {scaling.kind} scaling")
    if getattr(positions, "base_pattern", ()):
        found.append("model.positions.base_pattern: expected [], one base for all layers")
    if config.norm_order not in ("pre", "post"):
        found.append(f"model.norm_order: expected pre or post, got {config.norm_order}")
    if config.activation == "relu2" and config.gated_ff:
        found.append("model.gated_ff: expected false with the activation relu2, got true")
    if config.norm != "rmsnorm" and config.qk_norm:
        found.append("model.qk_norm: expected false without norm rmsnorm, got true")
    if config.decoder is not None and config.n_token_types:
        found.append(f"model.n_token_types: expected 0, got {config.n_token_types}")
    if config.decoder is not None and (not isinstance(head, c.TokenHead) or head.transform):
        found.append("model.head: expected tokens without a transform")
    return found


def specify(ct2: ModuleType, network: Transformer) -> Any:
    """Return the specification of a network that fits, with its weights."""
    specs = ct2.specs
    config, encoder, decoder = network.config, network.encoder, network.decoder
    if decoder is None:
        assert encoder is not None
        return specs.TransformerEncoderModelSpec(_encoder(ct2, config, encoder))
    filled = _decoder(ct2, config, decoder, network.output)
    if encoder is None:
        return specs.TransformerDecoderModelSpec(filled)
    return specs.TransformerSpec(_encoder(ct2, config, encoder), filled)


def _encoder(ct2: ModuleType, config: c.TransformerConfig, encoder: Encoder) -> Any:
    assert config.encoder is not None
    types = encoder.embeddings.token_types
    spec = ct2.specs.transformer_spec.TransformerEncoderSpec(
        config.encoder.n_layers,
        num_source_embeddings=1 if types is None else 2,
        embeddings_merge=ct2.specs.EmbeddingsMerge.ADD,
        **_of_both(ct2, config, config.encoder),
    )
    spec.embeddings[0].weight = _array(encoder.embeddings.tokens.weight)
    if types is not None:
        spec.embeddings[1].weight = _array(types.weight)
    _fill_stack(spec, config, encoder, config.encoder_max_len)
    return spec


def _decoder(ct2: ModuleType, config: c.TransformerConfig, decoder: Decoder, output: nn.Module) -> Any:
    assert config.decoder is not None and isinstance(output, TokenLogits)
    stack = config.decoder
    spec = ct2.specs.transformer_spec.TransformerDecoderSpec(
        stack.n_layers,
        with_encoder_attention=config.encoder is not None,
        alibi=isinstance(config.positions, c.AlibiPositions),
        **_of_both(ct2, config, stack),
    )
    spec.embeddings.weight = _array(decoder.embeddings.tokens.weight)
    _fill_stack(spec, config, decoder, config.max_len)
    spec.projection.weight = _array(output.proj.weight)
    if output.bias is not None:
        spec.projection.bias = _array(output.bias)
    if output.scale != 1:
        spec.scale_outputs = output.scale
    return spec


def _of_both(ct2: ModuleType, config: c.TransformerConfig, stack: c.Stack) -> dict[str, Any]:
    """Return the arguments that encoders and decoders share.

    `_fill_stack` sets the order of norms later, so that pre- and post-norm stacks may have a final norm.
    """
    positions = config.positions
    rotary: dict[str, Any] = {}
    if isinstance(positions, c.RotaryPositions):
        d_head = config.attention_widths(stack).d_head
        rotary = {"rotary_dim": positions.width(d_head), "rotary_base": positions.base, "rotary_interleave": False}
        if positions.scaling is not None:  # the only kind with a factor for each frequency
            rotary["rotary_scaling_type"] = ct2.specs.RotaryScalingType.Su
    return rotary | {
        "num_heads": stack.n_heads,
        "pre_norm": True,
        "no_final_norm": not config.final_norm,
        "activation": ct2.specs.Activation[ACTIVATIONS[config.activation]],
        "layernorm_embedding": config.embedding_norm,
        "relative_attention_bias": isinstance(config.positions, c.RelativePositions),
        "ffn_glu": config.gated_ff or config.activation == "relu2",
        "rms_norm": config.norm == "rmsnorm",
        "num_heads_kv": stack.n_kv_heads or None,
        "head_dim": stack.d_head or None,
        "qk_norm": config.qk_norm,
    }


def _fill_stack(spec: Any, config: c.TransformerConfig, stack: Encoder | Decoder, n_positions: int) -> None:
    spec.pre_norm = config.norm_order == "pre"
    spec.scale_embeddings = config.scale_embeddings
    if hasattr(spec, "position_encodings") and not len(stack.rotaries):
        positions = stack.embeddings.positions
        encodings = torch.zeros(n_positions, config.d_model)
        if positions is not None:
            encodings = positions(torch.arange(n_positions))
        spec.position_encodings.encodings = _array(encodings)
    if stack.embeddings.norm is not None:
        _fill_norm(spec.layernorm_embedding, stack.embeddings.norm)
    if stack.final_norm is not None:
        _fill_norm(spec.layer_norm, stack.final_norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, Block) and isinstance(block.ff, FeedForward) and block.self_attn_norm is not None
        _fill_attention(layer.self_attention, block.self_attn, block.self_attn_norm)
        for rotary in stack.rotaries:  # at most one
            assert isinstance(rotary, Rotary)
            _scale_rotary(layer.self_attention, rotary)
        if isinstance(stack.score_bias, RelativeBias):
            layer.self_attention.relative_attention_bias = _array(stack.score_bias.table.weight)
            layer.self_attention.relative_attention_max_distance = np.int32(stack.score_bias.max_distance)
        if block.cross_attn is not None and block.cross_attn_norm is not None:
            _fill_attention(layer.attention, block.cross_attn, block.cross_attn_norm, is_cross=True)
        _fill_norm(layer.ffn.layer_norm, block.ff_norm)
        _fill_linear(layer.ffn.linear_0, block.ff.gate_proj or block.ff.up_proj)
        if hasattr(layer.ffn, "linear_0_noact"):
            _fill_linear(layer.ffn.linear_0_noact, block.ff.up_proj)
        _fill_linear(layer.ffn.linear_1, block.ff.down_proj)


def _scale_rotary(spec: Any, rotary: Rotary) -> None:
    """Set the divisors of the frequencies; the factor of queries and keys becomes part of the attention scale."""
    spec.queries_scale *= rotary.attention_factor**2
    if hasattr(spec, "rotary_scaling_long_factor"):
        plain = rotary_frequencies(float(spec.rotary_base), 2 * len(rotary.inverse_frequencies))
        factors = _array(plain / rotary.inverse_frequencies)
        spec.rotary_scaling_long_factor = spec.rotary_scaling_short_factor = factors


def _fill_attention(spec: Any, attention: Any, norm: nn.Module, is_cross: bool = False) -> None:
    _fill_norm(spec.layer_norm, norm)
    spec.queries_scale = attention.scale
    if attention.q_norm is not None:
        _fill_norm(spec.q_norm, attention.q_norm)
        _fill_norm(spec.k_norm, attention.k_norm)
    if attention.fused_qkv:
        _fill_linear(spec.linear[0], attention.qkv_proj)
    elif is_cross:
        _fill_linear(spec.linear[0], attention.q_proj)
        _fill_linear(spec.linear[1], attention.k_proj, attention.v_proj)
    else:
        _fill_linear(spec.linear[0], attention.q_proj, attention.k_proj, attention.v_proj)
    _fill_linear(spec.linear[-1], attention.out_proj)


def _fill_linear(spec: Any, *linears: nn.Linear | None) -> None:
    """Fill one linear layer of CTranslate2 with several layers, concatenated by rows."""
    parts = [linear for linear in linears if linear is not None]
    spec.weight = _array(torch.cat([linear.weight for linear in parts]))
    biases: list[Tensor] = [linear.bias for linear in parts if linear.bias is not None]
    if biases:
        spec.bias = _array(torch.cat(biases))


def _fill_norm(spec: Any, norm: Any) -> None:
    scale, bias = norm.weight, getattr(norm, "bias", None)
    if scale is None:
        scale = torch.ones(norm.width)
    if bias is None:
        bias = torch.zeros(norm.width)
    spec.gamma = _array(scale)
    if hasattr(spec, "beta"):
        spec.beta = _array(bias)


def _array(x: Tensor) -> Any:
    return x.detach().float().cpu().contiguous().numpy()
