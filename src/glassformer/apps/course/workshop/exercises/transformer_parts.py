"""Chapters 5 to 7: attention, the block, and the translator, tested by their uses."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.course.mytransformer import attention, block, generate, transformer
from glassformer.apps.course.workshop.exercise import (
    IS_SOURCE,
    D,
    Exercise,
    F,
    Filled,
    H,
    L,
    N,
    Use,
    V,
    ids,
    mask,
    normal,
    uses,
)

HEADS, BLOCK, ASSEMBLED = "course/05-attention", "course/06-the-block", "course/07-the-transformer"


# Chapter 5: attention


def attention_uses() -> list[tuple[Use]]:
    x, memory, allowed = normal(2, 5, D), normal(2, 4, D, seed=1), mask(2, 1, 5, 4, seed=2)
    causal = attention.causal_mask(5)[None, None]

    def with_cache(part: Any) -> Any:
        cache: list[Tensor] = []
        layer = Filled(part, D, H).module
        return torch.cat([layer(x[:, a:b], causal[:, :, a:b, :b], cache=cache) for a, b in pairwise((0, 2, 3, 5))], 1)

    def cached(part: Any) -> Any:
        cache: list[Tensor] = []
        layer = Filled(part, D, H).module
        for a, b in ((0, 2), (2, 3)):
            layer(x[:, a:b], causal[:, :, a:b, :b], cache=cache)
        return list(cache)

    return uses(
        causal_self_attention=lambda part: Filled(part, D, H)(x, causal),
        one_head=lambda part: Filled(part, D, 1)(x, causal),
        a_memory=lambda part: Filled(part, D, 4)(x, allowed, memory),
        a_memory_of_equal_length=lambda part: Filled(part, D, H)(x, causal, normal(2, 5, D, seed=3)),
        without_biases=lambda part: Filled(part, D, H, has_bias=False)(x, causal),
        a_query_without_keys=lambda part: Filled(part, D, H)(x, allowed & (torch.arange(5) != 2)[:, None], memory),
        a_cache=with_cache,
        what_the_cache_has=cached,
        a_width_that_does_not_fit=lambda part: part(D, 3)(x, causal),
    )


# Chapter 6: the block


def residual_uses() -> list[tuple[Use]]:
    x = 2 * normal(2, 3, D) + 1

    def training(part: Any) -> Any:
        step = Filled(part, D, "pre", 0.25).module.train()
        added = step(torch.zeros(1, 4000, D), torch.ones_like)
        return sorted({round(v, 4) for v in added.flatten().tolist()}), abs(added.mean().item() - 1) < 0.05

    def independent(part: Any) -> Any:
        step, x = part(D, "pre", 0.25).train(), torch.full((1, 4000, D), 3.0)
        first, second = (step(x, torch.ones_like) for _ in range(2))
        zero = (first < 3.5).float()
        return sorted({round(v, 4) for v in first.flatten().tolist()}), {
            "the numbers of a token are independent": bool(zero.mean(-1).std() < 0.2),
            "tokens are independent": bool(zero.mean(1).std() < 0.1),
            "each call draws": not torch.equal(first, second),
        }

    def place(part: Any) -> Any:
        x, y = normal(1, 400, D), normal(1, 400, D, seed=1)
        after = part(D, "sandwich", 0.5).train()(x, lambda _: y)
        post = part(D, "post", 0.5).train()(x, lambda _: y)
        return {
            "sandwich": round((after == x).float().mean().item(), 1),
            "post": bool(post.mean(-1).abs().max() < 1e-3),
        }

    def order(name: str) -> Any:
        return lambda part: Filled(part, D, name)(x, torch.sin)

    return uses(
        pre=order("pre"),
        post=order("post"),
        sandwich=order("sandwich"),
        dropout_of_what_is_added=training,
        dropout_of_independent_numbers=independent,
        dropout_before_the_addition=place,
        no_dropout_in_evaluation=lambda part: Filled(part, D, "post", 0.5)(x, torch.sin),
        another_order=lambda part: type(part(D, "middle")).__name__,
    )


def block_uses() -> list[tuple[Use]]:
    x, memory = normal(2, 5, D), normal(2, 4, D, seed=1)
    causal, allowed = attention.causal_mask(5)[None, None], mask(2, 1, 5, 4, seed=2)

    def with_cache(part: Any) -> Any:
        cache: list[Tensor] = []
        layer = Filled(part, D, H, F).module
        return torch.cat([layer(x[:, a:b], causal[:, :, a:b, :b], cache=cache) for a, b in ((0, 2), (2, 5))], 1)

    def with_memory_and_cache(part: Any) -> Any:
        cache: list[Tensor] = []
        layer, read = Filled(part, D, H, F, has_memory=True).module, []
        for a, b in ((0, 2), (2, 5)):
            read.append(layer(x[:, a:b], causal[:, :, a:b, :b], memory, allowed[:, :, a:b], cache))
        return torch.cat(read, 1)

    def dropout_in(part: Any) -> Any:
        found = {}
        for silent in ("attention.o", "down"):
            filled = Filled(part, D, H, F, rate=0.5)
            with torch.no_grad():
                for kind in ("weight", "bias"):
                    filled.weights[f"{silent}.{kind}"].zero_()
            layer = filled.module.train()
            found[f"equal without {silent}"] = torch.equal(layer(x, causal), layer(x, causal))
        return found

    def order(name: str) -> Any:
        return lambda part: Filled(part, D, H, F, name)(x, causal)

    return uses(
        pre=order("pre"),
        post=order("post"),
        sandwich=order("sandwich"),
        another_activation=lambda part: Filled(part, D, H, F, "post", torch.relu)(x, causal),
        a_memory=lambda part: Filled(part, D, H, F, "post", has_memory=True)(x, causal, memory, allowed),
        a_memory_of_equal_length=lambda part: Filled(part, D, H, F, "post", has_memory=True)(
            x, causal, normal(2, 5, D, seed=4), mask(2, 1, 5, 5, seed=5)
        ),
        a_cache=with_cache,
        a_memory_and_a_cache=with_memory_and_cache,
        dropout_of_both_additions=dropout_in,
    )


def drawing_uses() -> list[tuple[Use]]:
    def drawn(part: Any, n_blocks: int, *std: float) -> Any:
        blocks = [block.Block(96, 2, 192) for _ in range(n_blocks)]
        model = nn.Sequential(*blocks, nn.Embedding(99, 96), nn.Linear(96, 90, bias=False))
        part(model, *std)
        found = {}
        for name, x in model.named_parameters():
            spread, has_tails = x.std().item(), x.dim() > 1 and bool((x.abs() > 2.5 * x.std()).any())
            found[name] = round(spread / (0.1 * (std or (0.02,))[0])), round(x.mean().item(), 1), has_tails
        return found

    return uses(
        spread_mean_and_tails=lambda part: drawn(part, 3),
        another_spread=lambda part: drawn(part, 3, 0.06),
        one_block=lambda part: drawn(part, 1),
        no_block=lambda part: drawn(part, 0),
    )


# Chapter 7: the Transformer


def batch_uses() -> list[tuple[Use]]:
    def unchanged(part: Any) -> Any:
        pairs = [([5, 6], [7]), ([8], [9])]
        part(pairs, 0, 1, 2)
        return pairs

    return uses(
        the_pairs_stay=unchanged,
        rows_of_different_lengths=lambda part: part([([5, 6, 7], [8]), ([9], [4, 5, 6])], 0, 1, 2),
        one_pair=lambda part: part([([5], [6])], 3, 4, 5),
        ids_equal_to_the_padding=lambda part: part([([5, 2], [2, 6]), ([7], [8])], 0, 1, 2),
    )


def transformer_uses() -> list[tuple[Use]]:
    given = (ids(3, 5), ids(3, 4, seed=1), IS_SOURCE)

    def new(part: Any, **more: Any) -> Filled:
        return Filled(part, V, V, D, H, F, L, N, **more)

    def steps(part: Any) -> Any:
        model = new(part).module
        memory = model.encode(*given[1:])
        return model.project(model.decode(given[0], memory, IS_SOURCE))

    def with_cache(part: Any) -> Any:
        model = new(part).module
        memory, cache = model.encode(*given[1:]), model.new_cache()
        return torch.cat([model.decode(given[0][:, a:b], memory, IS_SOURCE, cache) for a, b in ((0, 3), (3, 5))], 1)

    def without_future(part: Any) -> Any:
        model, other = new(part).module, given[0].clone()
        other[:, 3:] = (other[:, 3:] + 1) % V
        return torch.allclose(model(*given)[:, :3], model(other, *given[1:])[:, :3], atol=1e-4)

    def noise(part: Any) -> Any:
        model = part(V, V, D, H, F, L, N, rate=0.5)
        first, second = model.train()(*given), model(*given)
        model.eval()
        return bool((first != second).any()), torch.equal(model(*given), model(*given))

    def first_of_bart(part: Any) -> Any:
        tables = [x for x in part(500, 500, 64, 4, 256, 2, is_bart=True).parameters() if x.shape == (500, 64)]
        return [round(x.std().item(), 3) for x in tables]

    def xavier(part: Any) -> Any:
        torch.manual_seed(0)
        model = part(V, V, 32, 2, 64, 1, N)
        wanted = {name: (6 / sum(x.shape)) ** 0.5 for name, x in model.named_parameters() if x.dim() == 2}
        found = {name: x.abs().max().item() for name, x in model.named_parameters() if x.dim() == 2}
        return sum(0.9 * wanted[name] < x <= wanted[name] for name, x in found.items()) / len(found)

    return uses(
        logits=lambda part: new(part)(*given),
        encode_decode_project=steps,
        two_vocabularies=lambda part: Filled(part, V, 7, D, H, F, L, N)(ids(3, 5, n=7), *given[1:]),
        a_row_alone=lambda part: new(part).module(given[0][1:2], given[1][1:2, :2], IS_SOURCE[1:2, :2]),
        later_tokens_change_nothing=without_future,
        a_cache=with_cache,
        first_weights=xavier,
        dropout_in_training_only=noise,
        first_weights_of_BART=first_of_bart,
        BART=lambda part: new(part, is_bart=True)(*given),
    )


def searched(alpha: float, beam: int, seed: int, std: float, *, tokens: float = 1.0, rate: float = 0.0) -> Any:
    """Return a search in which some sources reach the end earlier than others."""

    def run(part: Any) -> Any:
        torch.manual_seed(seed)
        model = transformer.Transformer(V, V, D, H, F, L, 16, rate=rate).eval()
        block.draw_weights(model, std)
        source, is_source = ids(6, 4), torch.ones(6, 4, dtype=torch.bool)
        is_source[1::2, 2:] = False
        with torch.no_grad():
            model.output.weight.mul_(2.5)  # differences of probabilities that matter
            model.target.tokens.weight.mul_(tokens)
        end = generate.translate(model, source, is_source, 0, -1, beam=3, max_len=8)[0][5]
        return part(model.train(rate > 0), source, is_source, 0, end, beam=beam, max_len=8, alpha=alpha)

    return run


def translate_uses() -> list[tuple[Use]]:
    def in_one_batch(part: Any) -> Any:
        """Return how many steps there are, and how many tokens each reads."""
        model, seen = transformer.Transformer(V, V, D, H, F, L, 16).eval(), []
        decode = model.decode

        def watched(new: Tensor, *given: Any) -> Tensor:
            seen.append(new.shape)
            return decode(new, *given)

        model.decode = watched  # type: ignore[assignment, method-assign]
        part(model, ids(6, 4), torch.ones(6, 4, dtype=torch.bool), 0, -1, beam=3, max_len=4)
        return {"steps": len(seen) <= 5, "tokens of a step": max(shape[1] for shape in seen)}

    return uses(
        one_hypothesis=searched(0.0, 1, 4, 0.3),
        a_beam_of_three=searched(0.0, 3, 3, 0.45),
        long_texts_preferred=searched(3.0, 3, 5, 0.3),
        short_texts_preferred=searched(-3.0, 3, 4, 0.3),
        a_beam_of_four=searched(1.0, 4, 3, 0.45),
        rows_of_the_cache=searched(0.0, 4, 6, 0.8, tokens=3.0),
        a_model_in_training=searched(0.0, 3, 3, 0.45, rate=0.5),
        all_texts_in_one_batch=in_one_batch,
    )


EXERCISES = [
    Exercise(attention.MultiHeadAttention, f"{HEADS}#attention-as-a-module", attention_uses),
    Exercise(block.Residual, f"{BLOCK}#before-after-or-both", residual_uses),
    Exercise(block.Block, f"{BLOCK}#a-block-from-its-parts", block_uses),
    Exercise(block.draw_weights, f"{BLOCK}#the-first-weights", drawing_uses),
    Exercise(transformer.batch_of, f"{ASSEMBLED}#batches-of-pairs", batch_uses),
    Exercise(transformer.Transformer, f"{ASSEMBLED}#the-class-transformer", transformer_uses),
    Exercise(generate.translate, f"{ASSEMBLED}#many-sources-at-once", translate_uses),
]
