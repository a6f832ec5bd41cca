"""Decoders for the benchmarks, all of the same size: functions from token ids to logits."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.config.transformer import NormalInit, Stack, TransformerConfig
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer


class Decoder:
    """Sizes of a GPT-2-shaped model and its batch."""

    def __init__(self, n_layers: int, n_heads: int, d_model: int, vocab_size: int, context: int, batch: int) -> None:
        self.n_layers, self.n_heads, self.d_model = n_layers, n_heads, d_model
        self.vocab_size, self.context, self.batch = vocab_size, context, batch

    @property
    def n_tokens(self) -> int:
        return self.context * self.batch

    @property
    def step_flops(self) -> float:
        """6 · weights · tokens, and attention's 12 · layers · width · context per token, halved by the causal mask."""
        weights = 12 * self.n_layers * self.d_model**2 + self.vocab_size * self.d_model
        return self.n_tokens * (6 * weights + 6 * self.n_layers * self.d_model * self.context)

    def inputs(self, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
        """Draw token ids and the labels, the token after each."""
        ids = torch.randint(self.vocab_size, (self.batch, self.context + 1), device=device)
        return (ids[:, :-1],), ids[:, 1:]


class PlainBlock(nn.Module):
    """A pre-norm block with one matrix for queries, keys and values, as in nanoGPT."""

    def __init__(self, d_model: int, n_heads: int, bias: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.ln_1 = nn.LayerNorm(d_model, bias=bias)
        self.c_attn = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.c_proj = nn.Linear(d_model, d_model, bias=bias)
        self.ln_2 = nn.LayerNorm(d_model, bias=bias)
        self.c_fc = nn.Linear(d_model, 4 * d_model, bias=bias)
        self.mlp_proj = nn.Linear(4 * d_model, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        n_rows, n_tokens, width = x.shape
        q, k, v = (
            part.view(n_rows, n_tokens, self.n_heads, -1).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(n_rows, n_tokens, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """A minimal GPT-2, written by hand; a test compares it with transformers."""

    def __init__(self, shape: Decoder, bias: bool = False) -> None:
        super().__init__()
        self.wte = nn.Embedding(shape.vocab_size, shape.d_model)
        self.wpe = nn.Embedding(shape.context, shape.d_model)
        self.h = nn.ModuleList(PlainBlock(shape.d_model, shape.n_heads, bias) for _ in range(shape.n_layers))
        self.ln_f = nn.LayerNorm(shape.d_model, bias=bias)
        self.lm_head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.wte(token_ids) + self.wpe(torch.arange(token_ids.shape[1], device=token_ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class TorchGPT(nn.Module):
    """A GPT made from `torch.nn.TransformerEncoder` with a causal mask."""

    def __init__(self, shape: Decoder) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.d_model)
        self.positions = nn.Embedding(shape.context, shape.d_model)
        layer = nn.TransformerEncoderLayer(
            shape.d_model, shape.n_heads, 4 * shape.d_model, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
        )
        norm = nn.LayerNorm(shape.d_model, bias=False)
        self.stack = nn.TransformerEncoder(layer, shape.n_layers, norm=norm, enable_nested_tensor=False)
        self.head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        n_tokens = token_ids.shape[1]
        x = self.tokens(token_ids) + self.positions(torch.arange(n_tokens, device=token_ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(n_tokens, device=token_ids.device)
        return self.head(self.stack(x, mask=mask, is_causal=True))


def ours(shape: Decoder, bias: bool = False) -> Transformer:
    """Build glassformer's model of GPT-2's shape, by default without biases, as in nanoGPT's recipe."""
    config = TransformerConfig(
        decoder=Stack(shape.n_layers, shape.n_heads, d_ff=4 * shape.d_model),
        d_model=shape.d_model,
        vocab_size=shape.vocab_size,
        max_len=shape.context,
        activation="gelu_tanh",
        norm_bias=bias,
        qkv_bias=bias,
        attn_out_bias=bias,
        ff_bias=bias,
        fused_qkv=True,
        init=NormalInit(residual="scaled"),
    )
    return build_model(config)


def transformers_gpt2(shape: Decoder) -> nn.Module:
    """Build transformers' GPT-2 with its fused attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.context,
        n_embd=shape.d_model,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = "sdpa"

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = GPT2LMHeadModel(config)

        def forward(self, token_ids: Tensor) -> Tensor:
            return self.model(token_ids, use_cache=False).logits

    return Logits()


def x_transformers_gpt(shape: Decoder) -> nn.Module:
    """Build the decoder of `x-transformers` with flash attention."""
    import x_transformers

    return x_transformers.TransformerWrapper(
        num_tokens=shape.vocab_size,
        max_seq_len=shape.context,
        tie_embedding=True,
        attn_layers=x_transformers.Decoder(
            dim=shape.d_model,
            depth=shape.n_layers,
            heads=shape.n_heads,
            attn_dim_head=shape.d_model // shape.n_heads,
            attn_flash=True,
        ),
    )


MODELS = {
    "plain GPT (as nanoGPT)": PlainGPT,
    "transformers GPT-2": transformers_gpt2,
    "x-transformers": x_transformers_gpt,
    "torch.nn": TorchGPT,
}
