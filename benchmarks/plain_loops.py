"""Decoding as one writes it by hand: weights in lists, and preallocated keys and values. Greedy; one loop per lineage.

Each loop takes the weights of a model of glassformer and computes what that model computes; a test compares the ids.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bahdanau_peers import PlainBahdanau
from glassformer.models.transformer import Transformer


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head of x (B, H, T, K) by its angles (T, K)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), -1) * sin


class PlainDecoder:
    """Decoder of the preset `modern-mini`: RMSNorm without weights, rotary positions, a squared ReLU, no biases."""

    def __init__(self, model: Transformer, n_rows: int, n_slots: int) -> None:
        decoder: Any = model.decoder
        output: Any = model.output
        self.embedding, self.head = decoder.embeddings.tokens.weight, output.proj.weight
        self.n_heads = decoder.blocks[0].self_attn.n_heads
        self.weights = []
        for block in decoder.blocks:
            attn, ff = block.self_attn, block.ff
            qkv = torch.cat((attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight))  # (3D, D)
            self.weights.append((qkv, attn.out_proj.weight, ff.up_proj.weight, ff.down_proj.weight))
        angles = torch.arange(n_slots)[:, None] * decoder.rotaries[0].inverse_frequencies  # (S, K/2)
        angles = torch.cat((angles, angles), -1)
        self.cos, self.sin = (table.to(self.embedding.dtype) for table in (angles.cos(), angles.sin()))
        cache = (len(self.weights), 2, n_rows, self.n_heads, n_slots, self.cos.shape[-1])
        self.cache = self.embedding.new_zeros(cache)

    def logits(self, ids: Tensor, start: int) -> Tensor:
        """Read ids (B, T) at the slots from `start` on; return the logits (B, V) after the last one."""
        width, end = self.embedding.shape[1], start + ids.shape[1]
        cos, sin = self.cos[start:end], self.sin[start:end]  # (T, K)
        x = F.embedding(ids, self.embedding)  # (B, T, D)
        for (qkv, out, up, down), (keys, values) in zip(self.weights, self.cache, strict=True):
            heads = (
                F.linear(F.rms_norm(x, (width,), eps=1e-5), qkv).unflatten(-1, (3 * self.n_heads, -1)).transpose(1, 2)
            )
            qk, v = heads[:, : 2 * self.n_heads], heads[:, 2 * self.n_heads :]
            q, k = rotated(F.rms_norm(qk, (qk.shape[-1],), eps=1e-5), cos, sin).chunk(2, dim=1)  # (B, H, T, K)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            a = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], is_causal=start == 0)
            x = x + F.linear(a.transpose(1, 2).flatten(2), out)
            x = x + F.linear(F.linear(F.rms_norm(x, (width,), eps=1e-5), up).relu().square(), down)
        return F.linear(F.rms_norm(x[:, -1], (width,), eps=1e-5), self.head)

    @torch.inference_mode()
    def greedy(self, prompts: Tensor, n_new: int) -> Tensor:
        """Return the `n_new` ids (B, n_new) after prompts (B, T) of one length."""
        ids, start, found = prompts, 0, []
        for _ in range(n_new):
            logits = self.logits(ids, start)
            start, ids = start + ids.shape[1], logits.argmax(-1, keepdim=True)
            found.append(ids)
        return torch.cat(found, 1)


class PlainEncoder:
    """BERT with a head (`bert_peers`): post-norm, learned positions, GELU, biases; rows without padding."""

    def __init__(self, model: Transformer) -> None:
        encoder: Any = model.encoder
        self.embeddings, self.head, self.weights = encoder.embeddings, model.output, []
        self.n_heads = encoder.blocks[0].self_attn.n_heads
        for block in encoder.blocks:
            attn = block.self_attn
            layers = (attn.q_proj, attn.k_proj, attn.v_proj)
            qkv = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
            others = [(layer.weight, layer.bias) for layer in (attn.out_proj, block.ff.up_proj, block.ff.down_proj)]
            norms = [(norm.weight, norm.bias, norm.eps) for norm in (block.self_attn_norm, block.ff_norm)]
            self.weights.append((qkv, *others, *norms))

    @torch.inference_mode()
    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the output of the head for ids (B, T)."""
        x = self.embeddings(token_ids, torch.arange(token_ids.shape[1]))  # (B, T, D)
        shape = x.shape[-1:]
        for qkv, out, up, down, attn_norm, ff_norm in self.weights:
            heads = F.linear(x, *qkv).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, H, T, K)
            context = F.scaled_dot_product_attention(*heads)
            x = F.layer_norm(x + F.linear(context.transpose(1, 2).flatten(2), *out), shape, *attn_norm)
            x = F.layer_norm(x + F.linear(F.gelu(F.linear(x, *up)), *down), shape, *ff_norm)
        return self.head(x)


class PlainTranslator:
    """Encoder-decoder of Marian's shape (`translation_peers`): post-norm, sines, SiLU, biases."""

    def __init__(self, model: Transformer) -> None:
        encoder, decoder = model.encoder, model.decoder
        assert encoder is not None and decoder is not None
        self.source, self.target = encoder.embeddings, decoder.embeddings
        self.encoder: Any = list(encoder.blocks)
        self.decoder: Any = list(decoder.blocks)
        self.head: Any = model.output.proj
        self.n_heads = self.decoder[0].self_attn.n_heads

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, T, D) → (B, H, T, K)

    def attend(self, attn: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context = F.scaled_dot_product_attention(q, k, v)
        return F.linear(context.transpose(1, 2).flatten(2), attn.out_proj.weight, attn.out_proj.bias)

    def added(self, x: Tensor, y: Tensor, norm: Any) -> Tensor:
        return F.layer_norm(x + y, x.shape[-1:], norm.weight, norm.bias, norm.eps)

    def feed_forward(self, x: Tensor, block: Any) -> Tensor:
        up, down = block.ff.up_proj, block.ff.down_proj
        y = F.linear(F.silu(F.linear(x, up.weight, up.bias)), down.weight, down.bias)
        return self.added(x, y, block.ff_norm)

    def memory(self, source: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Encode source ids (B, S); return the keys and values of each block's cross-attention."""
        x = self.source(source, torch.arange(source.shape[1]))
        for block in self.encoder:
            attn = block.self_attn
            q, k, v = (self.split(F.linear(x, p.weight, p.bias)) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
            x = self.feed_forward(self.added(x, self.attend(attn, q, k, v), block.self_attn_norm), block)
        return [(self.split(a.k_proj(x)), self.split(a.v_proj(x))) for a in (b.cross_attn for b in self.decoder)]

    def step(self, ids: Tensor, at: int, cache: Tensor, memory: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Read the ids (R,) at slot `at`; return log p (R, V). The rows of a sentence share its memory."""
        x = self.target(ids[:, None], torch.tensor([at]))
        n_sentences = len(memory[0][0])
        for block, (keys, values), (source_keys, source_values) in zip(self.decoder, cache, memory, strict=True):
            attn = block.self_attn
            q, k, v = (self.split(F.linear(x, p.weight, p.bias)) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
            keys[:, :, at : at + 1], values[:, :, at : at + 1] = k, v
            y = self.attend(attn, q, keys[:, :, : at + 1], values[:, :, : at + 1])
            x = self.added(x, y, block.self_attn_norm)
            attn = block.cross_attn
            # The hypotheses of a sentence are the queries of one row.
            q = self.split(F.linear(x.view(n_sentences, -1, x.shape[-1]), attn.q_proj.weight, attn.q_proj.bias))
            y = self.attend(attn, q, source_keys, source_values).view_as(x)
            x = self.feed_forward(self.added(x, y, block.cross_attn_norm), block)
        return F.linear(x[:, 0], self.head.weight, self.head.bias).log_softmax(-1)

    @torch.inference_mode()
    def search(self, source: Tensor, start_id: int, end_id: int, n_new: int, beam: int) -> Tensor:
        """Return the best targets (B, n_new) of sources (B, S) by beam search; the end token is never chosen."""
        memory, n = self.memory(source), len(source)
        n_layers, k = len(self.decoder), memory[0][0].shape[-1]
        cache = memory[0][0].new_zeros(n_layers, 2, n * beam, self.n_heads, n_new, k)
        ids = torch.full((n * beam,), start_id)
        scores = torch.full((n, beam), -math.inf).index_fill(1, torch.tensor([0]), 0.0)  # one live hypothesis at first
        targets = ids.new_zeros(n * beam, 0)
        first_rows = torch.arange(n)[:, None] * beam
        for at in range(n_new):
            log_p = self.step(ids, at, cache, memory)
            log_p[:, end_id] = -math.inf
            totals = scores[..., None] + log_p.view(n, beam, -1)
            scores, best = totals.flatten(1).topk(beam)  # (B, beam)
            ids = (best % log_p.shape[-1]).flatten()
            if beam > 1:
                rows = (first_rows + best // log_p.shape[-1]).flatten()
                targets, cache = targets[rows], cache[:, :, rows]
            targets = torch.cat((targets, ids[:, None]), 1)
        return targets.view(n, beam, -1)[:, 0]


@torch.inference_mode()
def plain_recurrent_search(model: PlainBahdanau, source: Tensor, start_id: int, end_id: int, n_new: int) -> Tensor:
    """Return the greedy targets (B, n_new) of sources (B, S); the end token is never chosen."""
    memory, last = model.encoder(model.table(source))
    keys, state = model.key(memory), torch.tanh(model.bridge(torch.cat((last[0], last[1]), dim=1)))
    ids, found = torch.full((len(source),), start_id), []
    for _ in range(n_new):
        x = model.table(ids)
        scores = model.score(torch.tanh(model.query(state)[:, None] + keys))
        context = (scores.softmax(dim=1) * memory).sum(dim=1)
        state = model.cell(torch.cat((x, context), dim=1), state)
        readout = model.of_state(state) + model.of_token(x) + model.of_context(context)
        logits = model.head(torch.maximum(*readout.chunk(2, dim=-1)))
        logits[:, end_id] = -math.inf
        ids = logits.argmax(-1)
        found.append(ids)
    return torch.stack(found, 1)
