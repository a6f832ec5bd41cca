"""The four lineages in one file: recurrent encoder-decoders, the Transformer of 2017 and BART, BERT, and GPT.

The functions are yours. The classes hold the weights, with the names that they have in glassformer's models, so that
`GPT(sizes).load_state_dict(model.network.state_dict())` loads weights that glassformer trained. Attention has no bias,
as in `multi_head_attention`. The models run on the CPU, and have no dropout.

Shapes: B texts, T tokens, S tokens of the source, D width of the model, V size of the vocabulary. A model maps ids
(B, T) to logits (B, T, V). Masks (B, T) and (B, S) are True for tokens, and False for padding, which may be at both
ends of a row.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.apps.course.workshop.solutions.ch02_positions import sinusoids
from glassformer.apps.course.workshop.solutions.ch03_recurrent import gru_step
from glassformer.apps.course.workshop.solutions.ch04_alignment import additive_scores, context, general_scores
from glassformer.apps.course.workshop.solutions.ch05_attention import causal_and_padding_mask, multi_head_attention
from glassformer.apps.course.workshop.solutions.ch06_block import block, feed_forward, gelu, layer_norm
from glassformer.apps.course.workshop.solutions.ch09_gpt import positions_of

# Recurrent encoder-decoders with attention (Bahdanau et al. 2015; Luong et al. 2015); all their widths are D


class Cells(nn.GRU):
    """The weights of torch's GRU, for your `gru_step`."""

    def states(self, x: Tensor, h: Tensor, is_token: Tensor, direction: str = "_l0") -> Tensor:
        """Return the state after each token of `x` (B, T, E): (B, T, D); padding leaves the state unchanged."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w: dict[str, Tensor] = {name: self.get_parameter(name + direction) for name in names}
        places, found = range(x.shape[1]), {}
        for t in reversed(places) if direction == "_l0_reverse" else places:
            found[t] = h = torch.where(is_token[:, t, None], gru_step(x[:, t], h, w), h)
        return torch.stack([found[t] for t in places], dim=1)


class RecurrentEncoder(nn.Module):
    """Reads the source in both directions, and puts the states of both side by side: (B, S, 2 D)."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.tokens, self.cells = nn.Embedding(vocab_size, width), Cells(width, width, bidirectional=True)

    def forward(self, source_ids: Tensor, is_source: Tensor) -> Tensor:
        x = self.tokens(source_ids)
        h = torch.zeros_like(x[:, 0])
        return torch.cat([self.cells.states(x, h, is_source, name) for name in ("_l0", "_l0_reverse")], dim=-1)


class BahdanauAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(width, width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.vector = nn.Parameter(torch.randn(width) / math.sqrt(width))

    def forward(self, states: Tensor, memory: Tensor, is_source: Tensor) -> Tensor:
        w = {"query": self.q_proj.weight.mT, "memory": self.k_proj.weight.mT, "vector": self.vector}
        return context(additive_scores(states, memory, w), memory, is_source)[0]


class BahdanauDecoder(nn.Module):
    """Attends with the last state before each step. The step reads the token and the context."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.tokens, self.cells = nn.Embedding(vocab_size, width), Cells(3 * width, width)
        self.cross_attn = BahdanauAttention(width)

    def forward(self, token_ids: Tensor, is_token: Tensor, h: Tensor, memory: Tensor, is_source: Tensor) -> Tensor:
        x, states = self.tokens(token_ids), [h[:, None]]
        for t in range(token_ids.shape[1]):
            read = torch.cat((x[:, t, None], self.cross_attn(states[t], memory, is_source)), dim=-1)
            states.append(self.cells.states(read, states[t][:, 0], is_token[:, t, None]))
        return torch.cat(states[1:], dim=1)


class LuongAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.k_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, states: Tensor, memory: Tensor, is_source: Tensor) -> Tensor:
        return context(general_scores(states, memory, self.k_proj.weight), memory, is_source)[0]


class LuongDecoder(nn.Module):
    """Attends after the steps (without input feeding), and joins each state with its context."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.tokens, self.cells = nn.Embedding(vocab_size, width), Cells(width, width)
        self.cross_attn, self.combine = LuongAttention(width), nn.Linear(3 * width, width)

    def forward(self, token_ids: Tensor, is_token: Tensor, h: Tensor, memory: Tensor, is_source: Tensor) -> Tensor:
        states = self.cells.states(self.tokens(token_ids), h, is_token)
        return self.combine(torch.cat((self.cross_attn(states, memory, is_source), states), dim=-1)).tanh()


class Recurrent(nn.Module):
    """The model of Bahdanau or of Luong, which the class of the decoder chooses."""

    def __init__(self, decoder: type[BahdanauDecoder] | type[LuongDecoder], vocab_size: int, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = RecurrentEncoder(vocab_size, width), decoder(vocab_size, width)
        self.bridge = nn.ModuleDict({"hidden": nn.Sequential(nn.Linear(2 * width, width), nn.Tanh())})
        self.output = nn.ModuleDict({"proj": nn.Linear(width, vocab_size, bias=False)})

    def forward(
        self, token_ids: Tensor, attention_mask: Tensor, source_ids: Tensor, source_attention_mask: Tensor
    ) -> Tensor:
        memory = self.encoder(source_ids, source_attention_mask)
        forwards, backwards = memory.chunk(2, dim=-1)
        first = self.bridge["hidden"](torch.cat((forwards[:, -1], backwards[:, 0]), dim=-1))
        return self.output["proj"](self.decoder(token_ids, attention_mask, first, memory, source_attention_mask))


# Parts of Transformers


@dataclass(frozen=True)
class Sizes:
    vocab_size: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    max_len: int
    eps: float = 1e-5


class Norm(nn.LayerNorm):
    """The weights of torch's LayerNorm, for your `layer_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class Embeddings(nn.Module):
    """Adds the vectors of token, position and segment; in 2017, the token's vector times √D, and sinusoids."""

    def __init__(self, sizes: Sizes, *, is_2017: bool = False, has_norm: bool = False, n_segments: int = 0) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(sizes.vocab_size, sizes.d_model), nn.ModuleDict()
        if not is_2017:
            self.positions["table"] = nn.Embedding(sizes.max_len, sizes.d_model)
        self.token_types = nn.Embedding(n_segments, sizes.d_model) if n_segments else None
        self.norm = Norm(sizes.d_model, sizes.eps) if has_norm else nn.Identity()

    def forward(self, token_ids: Tensor, is_token: Tensor, segments: Tensor | None = None) -> Tensor:
        x, positions = self.tokens(token_ids), positions_of(is_token)
        if self.positions:
            x = x + self.positions["table"](positions)
        else:
            x = x * math.sqrt(x.shape[-1]) + sinusoids(x.shape[1], x.shape[-1])[positions]
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros_like(token_ids) if segments is None else segments)
        return self.norm(x)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        d, self.n_heads = sizes.d_model, sizes.n_heads
        self.q_proj, self.k_proj = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.v_proj, self.out_proj = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)

    def weights(self) -> dict[str, Tensor]:
        matrices = {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj, "o": self.out_proj}
        return {name: matrix.weight.mT for name, matrix in matrices.items()}

    def forward(self, x: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
        return multi_head_attention(x, memory, self.weights(), self.n_heads, allowed)


class FeedForward(nn.Module):
    """Your `feed_forward`; in 2017, with ReLU in place of GELU."""

    def __init__(self, sizes: Sizes, *, is_2017: bool = False) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(sizes.d_model, sizes.d_ff), nn.Linear(sizes.d_ff, sizes.d_model)
        self.is_2017 = is_2017

    def weights(self) -> dict[str, Tensor]:
        up, down = self.up_proj, self.down_proj
        return {"up": up.weight.mT, "up_bias": up.bias, "down": down.weight.mT, "down_bias": down.bias}

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.up_proj(x).relu()) if self.is_2017 else feed_forward(x, self.weights())


class PostNormBlock(nn.Module):
    """Self-attention, in a decoder also attention to the source, and a feed-forward layer, each before a norm."""

    def __init__(self, sizes: Sizes, *, is_2017: bool = False, has_source: bool = False) -> None:
        super().__init__()
        self.self_attn, self.self_attn_norm = Attention(sizes), Norm(sizes.d_model, sizes.eps)
        if has_source:
            self.cross_attn, self.cross_attn_norm = Attention(sizes), Norm(sizes.d_model, sizes.eps)
        self.ff, self.ff_norm = FeedForward(sizes, is_2017=is_2017), Norm(sizes.d_model, sizes.eps)

    def forward(self, x: Tensor, allowed: Tensor, *source: Tensor) -> Tensor:
        x = self.self_attn_norm(x + self.self_attn(x, x, allowed))
        if source:  # the memory, and the mask of its keys
            x = self.cross_attn_norm(x + self.cross_attn(x, *source))
        return self.ff_norm(x + self.ff(x))


class PreNormBlock(nn.Module):
    """The weights of your `block`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn, self.self_attn_norm = Attention(sizes), Norm(sizes.d_model)
        self.ff, self.ff_norm = FeedForward(sizes), Norm(sizes.d_model)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        norms = {"norm_1": self.self_attn_norm.weight, "norm_1_bias": self.self_attn_norm.bias}
        norms |= {"norm_2": self.ff_norm.weight, "norm_2_bias": self.ff_norm.bias}
        return block(x, self.self_attn.weights() | self.ff.weights() | norms, allowed, self.self_attn.n_heads)


class Stack(nn.Module):
    """An encoder or a decoder: blocks, and embeddings, which the model calls itself."""

    def __init__(self, embeddings: Embeddings, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.embeddings, self.blocks = embeddings, nn.ModuleList(blocks)
        self.final_norm: nn.Module = nn.Identity()

    def forward(self, x: Tensor, allowed: Tensor, *source: Tensor) -> Tensor:
        for each in self.blocks:
            x = each(x, allowed, *source)
        return self.final_norm(x)


def every_token(is_token: Tensor, n_queries: int) -> Tensor:
    """Let each query attend to every token: (B, S) → (B, 1, T, S)."""
    return is_token[:, None, None].expand(-1, 1, n_queries, -1)


def draw_weights(model: nn.Module) -> None:
    """Draw the matrices and tables of a new model from the normal distribution with the standard deviation 0.02."""
    for weight in model.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02)


# The models


class Transformer(nn.Module):
    """The Transformer of Vaswani et al. (2017), or BART (Lewis et al. 2020) if not `is_2017`, with one token table."""

    def __init__(self, sizes: Sizes, *, is_2017: bool = True) -> None:
        super().__init__()
        tables = [Embeddings(sizes, is_2017=is_2017, has_norm=not is_2017) for _ in range(2)]
        both = [
            [PostNormBlock(sizes, is_2017=is_2017, has_source=has_source) for _ in range(sizes.n_layers)]
            for has_source in (False, True)
        ]
        self.encoder, self.decoder = Stack(tables[0], both[0]), Stack(tables[1], both[1])
        self.output = nn.ModuleDict({"proj": nn.Linear(sizes.d_model, sizes.vocab_size, bias=False)})
        self.output["proj"].weight = tables[1].tokens.weight = tables[0].tokens.weight
        draw_weights(self)

    def forward(
        self, token_ids: Tensor, attention_mask: Tensor, source_ids: Tensor, source_attention_mask: Tensor
    ) -> Tensor:
        x = self.encoder.embeddings(source_ids, source_attention_mask)
        memory = self.encoder(x, every_token(source_attention_mask, source_ids.shape[1]))
        x = self.decoder.embeddings(token_ids, attention_mask)
        source = memory, every_token(source_attention_mask, token_ids.shape[1])
        return self.output["proj"](self.decoder(x, causal_and_padding_mask(attention_mask), *source))


class MaskedTokens(nn.Module):
    """The logits of hidden tokens: a layer, and the product with the table of tokens."""

    def __init__(self, sizes: Sizes, table: nn.Embedding) -> None:
        super().__init__()
        dense, norm = nn.Linear(sizes.d_model, sizes.d_model), Norm(sizes.d_model, sizes.eps)
        self.transform = nn.ModuleDict({"dense": dense, "norm": norm})
        self.proj = nn.Linear(sizes.d_model, sizes.vocab_size, bias=False)
        self.proj.weight = table.weight
        self.bias = nn.Parameter(torch.zeros(sizes.vocab_size))

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.transform["norm"](gelu(self.transform["dense"](x)))) + self.bias


class BERT(nn.Module):
    """BERT with its masked language model (Devlin et al. 2019)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        blocks = [PostNormBlock(sizes) for _ in range(sizes.n_layers)]
        self.encoder = Stack(Embeddings(sizes, has_norm=True, n_segments=2), blocks)
        self.output = MaskedTokens(sizes, self.encoder.embeddings.tokens)
        draw_weights(self)

    def forward(self, token_ids: Tensor, attention_mask: Tensor, token_types: Tensor | None = None) -> Tensor:
        x = self.encoder.embeddings(token_ids, attention_mask, token_types)
        return self.output(self.encoder(x, every_token(attention_mask, token_ids.shape[1])))


class GPT(nn.Module):
    """GPT (Radford et al. 2019)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.decoder = Stack(Embeddings(sizes), [PreNormBlock(sizes) for _ in range(sizes.n_layers)])
        self.decoder.final_norm = Norm(sizes.d_model)
        self.output = nn.ModuleDict({"proj": nn.Linear(sizes.d_model, sizes.vocab_size, bias=False)})
        self.output["proj"].weight = self.decoder.embeddings.tokens.weight
        draw_weights(self)

    def forward(self, token_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            attention_mask = torch.ones_like(token_ids, dtype=torch.bool)
        x = self.decoder.embeddings(token_ids, attention_mask)
        itself = torch.eye(x.shape[1], dtype=torch.bool)  # so that padding at the left has a key
        return self.output["proj"](self.decoder(x, causal_and_padding_mask(attention_mask) | itself))
