"""The larger exercises: classes, loops and instruments, each tested by uses with a title."""

import copy
import json
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.course.mytransformer import (
    attention,
    bart,
    bert,
    block,
    embeddings,
    generate,
    gpt,
    look,
    recurrent,
    tokenizer,
    train,
    transformer,
    tune,
)
from glassformer.apps.course.workshop.exercise import Exercise, Filled, Use, ids, mask, normal

V, D, H, F, L, N = 11, 8, 2, 12, 2, 9
"""Sizes of the models of the tests: vocabulary, width, heads, inner width, blocks, longest text."""
IS_TOKEN = torch.tensor([[1] * 5, [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
IS_SOURCE = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
TEXT = "the lowest and the lower tower: a newer, wider, slower tower — naïve!\n\nthe end 12 12 "


def uses(**titles: Any) -> list[tuple[Use]]:
    """Return uses by their titles, with spaces in place of underscores."""
    return [(Use(title.replace("_", " "), run),) for title, run in titles.items()]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Chapter 1: the tokenizer


def trained(part: Any, is_bytes: bool = False) -> Any:
    return part.train(TEXT * 2, 30, is_bytes)


def many_words(part: Any) -> Any:
    """Learn from a text of many words, for which counting all pairs again after each merge is slow."""
    drawn = torch.randint(97, 123, (6000, 6), generator=generator()).tolist()
    return part.train(" ".join("".join(map(chr, word)) for word in drawn), 150).merges[:100]


def saved(part: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        mine = part.train(TEXT * 2, 17)
        mine.save(Path(folder) / "tokenizer.json")
        again = part.load(Path(folder) / "tokenizer.json")
        return again.encode(TEXT) == mine.encode(TEXT), again.symbols == mine.symbols


def saved_bytes(part: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        mine = part([("b", "a"), ("ba", "c")], [*map(chr, range(256))], True, ("[BOS]", "[PAD]", "[UNK]"))
        mine.save(path := Path(folder) / "tokenizer.json")
        again = part.load(path)
        return again.symbols, again.is_bytes, tuple(again.special), again.decode(again.encode("bac – naïve"))


def other_special(part: Any) -> Any:
    mine = part([("a", "b")], ["a", "b"], special=("[BOS]", "[PAD]", "[UNK]"))
    return mine.encode("Qab"), mine.encode_longest("Qab"), mine.pad([[3], [3, 4]]), mine.decode([0, 3, 1, 5, 2])


def kept_rows(part: Any) -> Any:
    rows = [[5, 6, 7], [8]]
    trained(part).pad(rows)
    return rows, trained(part).pad([[], []])


def one_symbol_of_two_merges(part: Any) -> Any:
    mine = part([("a", "a"), ("aa", "a"), ("a", "aa")], ["a", "b"])
    with tempfile.TemporaryDirectory() as folder:
        mine.save(path := Path(folder) / "tokenizer.json")
        return mine.symbols, mine.ids, part.load(path).symbols


def tokenizer_uses() -> list[tuple[Use]]:
    new = [("a", "b"), ("ab", "c"), ("b", "c")]
    return uses(
        train=lambda part: trained(part).merges,
        train_with_bytes=lambda part: trained(part, True).merges,
        train_until_no_pair_is_left=lambda part: part.train("ab ab", 99).merges,
        symbols_and_ids=lambda part: (trained(part).symbols, trained(part).ids, len(trained(part, True).symbols)),
        encode=lambda part: trained(part).encode("the newest tower"),
        encode_with_merges_in_their_order=lambda part: part(new, ["a", "b", "c"]).encode("abc bc"),
        unknown_symbols=lambda part: (trained(part).encode("QQ the"), trained(part).encode_longest("Qthe")),
        encode_longest=lambda part: (
            trained(part).encode_longest(TEXT),
            part(new, list("abc")).encode_longest("abcbc"),
        ),
        decode=lambda part: trained(part).decode([0, 2, 9, 12, 31, 3, 8]),
        a_round_trip=lambda part: [
            trained(part, kind).decode(trained(part, kind).encode(TEXT)) for kind in (False, True)
        ],
        bytes_of_other_alphabets=lambda part: trained(part, True).decode(trained(part, True).encode("日本 ж")),
        broken_bytes=lambda part: trained(part, True).decode([4 + 0xE6, 4 + 0x97]),
        pad=lambda part: trained(part).pad([[5, 6, 7, 9], [], [8]]),
        pad_leaves_the_rows=kept_rows,
        the_merge_that_was_learned_first=lambda part: part([("b", "c"), ("a", "b")], list("abc")).encode("abc"),
        other_special_tokens=other_special,
        one_symbol_of_two_merges=one_symbol_of_two_merges,
        save_and_load=saved,
        save_and_load_bytes=saved_bytes,
        many_words=many_words,
    )


# Chapter 2: embeddings


def embeddings_uses() -> list[tuple[Use]]:
    places = torch.arange(5)

    def of(part: Any, positions: str, where: Tensor = places, **more: Any) -> Any:
        return Filled(part, V, D, N, positions, **more)(ids(3, 5), where)

    return uses(
        learned_positions=lambda part: of(part, "learned"),
        sinusoids=lambda part: of(part, "sinusoids"),
        no_positions=lambda part: of(part, "none"),
        scaled=lambda part: of(part, "sinusoids", is_scaled=True),
        a_narrow_table=lambda part: of(part, "learned", d_table=3, is_scaled=True),
        positions_of_each_row=lambda part: of(part, "learned", ids(3, 5, n=N, seed=1)),
        sinusoids_are_not_trained=lambda part: [
            x.shape for x in part(V, D, N, "sinusoids").parameters() if x.requires_grad
        ],
        sinusoids_move_with_the_model=lambda part: (
            not any(isinstance(x, Tensor) for x in vars(part(V, D, N, "sinusoids")).values())
        ),
        an_unknown_kind=lambda part: type(part(V, D, N, "rotary")).__name__,
    )


# Chapters 3 and 4: recurrent models


def encoder_uses() -> list[tuple[Use]]:
    def of(part: Any, is_token: Tensor) -> Any:
        memory, first = Filled(part, V, D).module(ids(3, 5), is_token)
        return {"memory": memory.masked_fill(~is_token[..., None], 0.0), "first state": first}

    return uses(
        whole_rows=lambda part: of(part, torch.ones_like(IS_TOKEN)),
        padding_at_both_ends=lambda part: of(part, IS_TOKEN),
    )


def decoder_uses() -> list[tuple[Use]]:
    def of(part: Any, is_source: Tensor) -> Any:
        return Filled(part, V, D).module.step(ids(3), normal(3, D), normal(3, 4, 2 * D, seed=1), is_source)

    return uses(
        a_step=lambda part: of(part, torch.ones_like(IS_SOURCE)), padding_in_the_source=lambda part: of(part, IS_SOURCE)
    )


def translator_uses() -> list[tuple[Use]]:
    given = (ids(3, 5), ids(3, 4, seed=1), IS_SOURCE)

    def new(part: Any) -> Filled:
        return Filled(part, V, V, D)

    def alone(part: Any) -> Any:
        model = new(part).module
        return model(given[0][1:2], given[1][1:2, :2], IS_SOURCE[1:2, :2])

    def ends(part: Any) -> Any:
        model = new(part).module
        end = model.write(*given[1:], 0, V, 3)[0][-1]
        return model.write(*given[1:], 0, end, 6)

    def goes_on(part: Any) -> Any:
        model = Filled(part, V, 7, D).module
        with torch.no_grad():
            for x in model.parameters():
                x.mul_(4)
        end = model.write(*given[1:], 0, 7, 6)[0][1]
        return model.write(*given[1:], 0, end, 6)

    return uses(
        logits_of_true_tokens=lambda part: new(part)(*given),
        Luong=lambda part: Filled(part, V, V, D, recurrent.LuongDecoder)(*given),
        two_vocabularies=lambda part: Filled(part, V, 7, D)(ids(3, 5, n=7), *given[1:]),
        rows_that_continue_after_an_end=goes_on,
        a_row_alone=alone,
        write_without_an_end=lambda part: new(part).module.write(*given[1:], 0, V, 6),
        write_until_the_end=ends,
    )


# Chapters 5 and 13: attention


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


def tiles_uses() -> list[tuple[Use]]:
    parts = [3 * normal(2, 2, 10, 4, seed=seed) for seed in range(3)]
    large = [parts[0] * 40, parts[1] * 40, parts[2]]

    def largest(part: Any) -> Any:
        """Return whether a tensor is as large as the matrix of all scores."""
        sizes = Sizes()
        with sizes:
            part(*(normal(1, 1, 64, 2, seed=seed) for seed in range(3)), 8)
        return sizes.largest < 8 * 64

    def later(part: Any) -> Any:
        q, k, v = (normal(1, 2, 9, 4, seed=seed) for seed in range(3))
        v[..., 6:, :] = float("nan")
        return part(q, k, v, 3)[..., :6, :]

    return uses(
        tiles_of_three=lambda part: part(*parts, 3),
        one_tile=lambda part: part(*parts, 10),
        a_tile_larger_than_the_text=lambda part: part(*parts, 16),
        large_scores=lambda part: part(*large, 4),
        later_tiles_are_not_read=later,
        no_row_of_all_scores=largest,
    )


class Sizes(torch.overrides.TorchFunctionMode):
    """Keep the size of the largest tensor that a function of torch returns."""

    largest = 0

    def __torch_function__(self, function: Any, types: Any, given: Any = (), more: Any = None) -> Any:
        value = function(*given, **(more or {}))
        if isinstance(value, Tensor):
            self.largest = max(self.largest, value.numel())
        return value


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


def recomputed_uses() -> list[tuple[Use]]:
    def gradients(part: Any) -> Any:
        torch.manual_seed(0)
        layer, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), normal(3, 4).requires_grad_()
        y = part.apply(x, layer)
        y.sin().sum().backward()
        return [y, x.grad, *(p.grad for p in layer.parameters())]

    def runs(part: Any) -> Any:
        seen = []

        def f(x: Tensor) -> Tensor:
            seen.append(torch.is_grad_enabled())
            return x * x

        part.apply(normal(3).requires_grad_(), f).sum().backward()
        return seen

    def accumulated(part: Any) -> Any:
        torch.manual_seed(0)
        layer, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), normal(3, 4).requires_grad_()
        for _ in range(2):
            part.apply(part.apply(x, layer), layer).sin().sum().backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    return uses(
        outputs_and_gradients=gradients,
        the_inner_results_are_not_kept=runs,
        a_layer_that_is_used_twice=accumulated,
    )


# Chapters 7 and 10: the Transformer and BART


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


def noise_uses() -> list[tuple[Use]]:
    rows = [list(range(4, 24)), list(range(4, 10))]
    return uses(
        batches=lambda part: [part(copy.deepcopy(rows), 0.3, 3, 0, 1, 2, generator(seed)) for seed in range(3)],
        half_of_the_text=lambda part: part(copy.deepcopy(rows), 0.5, 3, 0, 1, 2, generator(9)),
    )


# Chapter 8: BERT


def bert_uses() -> list[tuple[Use]]:
    given = ids(3, 5)

    def new(part: Any, **more: Any) -> Filled:
        return Filled(part, V, D, H, F, L, N, **more)

    def shown(x: Tensor) -> Tensor:
        return x.masked_fill(~IS_TOKEN[..., None], 0.0)

    def first(part: Any) -> Any:
        model = part(500, 64, 4, 256, 2)
        tables = [round(x.std().item(), 3) for x in model.parameters() if x.shape == (500, 64)]
        return tables, [x.abs().max().item() for x in model.parameters() if x.shape == (500,)]

    return uses(
        first_weights=first,
        logits=lambda part: new(part)(given, torch.ones_like(IS_TOKEN)),
        padding=lambda part: shown(new(part).module(given, IS_TOKEN)),
        segments=lambda part: new(part).module(given, torch.ones_like(IS_TOKEN), ids(3, 5, n=2, seed=3)),
        labels_of_places=lambda part: shown(new(part, n_labels=3).module.tag(given, IS_TOKEN)),
        labels_of_texts=lambda part: new(part, n_labels=3).module.classify(given, IS_TOKEN),
    )


def fill_uses() -> list[tuple[Use]]:
    given = ids(3, 5).masked_fill(IS_TOKEN.flip(1) & (ids(3, 5, n=2, seed=5) > 0), 4)

    def run(part: Any) -> Any:
        torch.manual_seed(0)
        model = bert.BERT(V, D, H, F, L, N)
        block.draw_weights(model, 0.5)
        return part(model.train(), given.clone(), IS_TOKEN, 4)

    def one_pass(part: Any) -> Any:
        hidden = ids(3, 5).index_fill(1, torch.tensor([1, 3]), 4)
        before = hidden.clone()
        return part(Sums().train(), hidden, IS_TOKEN, 4), torch.equal(hidden, before)

    return uses(hidden_tokens=run, one_pass_in_evaluation_mode=one_pass)


class Sums(nn.Module):
    """A model whose answer depends on all ids, and on its mode."""

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        best = (x.sum(1, keepdim=True) + torch.arange(x.shape[1]) + self.training) % V
        return nn.functional.one_hot(best, V).float()


def masked_batch_uses() -> list[tuple[Use]]:
    given = ids(4, 40, n=99) + 5

    def stays(part: Any) -> Any:
        part(mine := given.clone(), given % 10 == 0, 4, 104, generator(1))
        return torch.equal(mine, given)

    return uses(
        the_ids_stay=stays,
        inputs_and_labels=lambda part: [
            part(given.clone(), given % 10 == 0, 4, 104, generator(seed)) for seed in range(2)
        ],
    )


# Chapter 9: GPT, its training and its writing


def windows_uses() -> list[tuple[Use]]:
    return uses(
        windows=lambda part: part(torch.arange(50), 4, 6, generator(2)),
        the_shortest_text=lambda part: part(torch.arange(8), 40, 6, generator(1)),
    )


def gpt_uses() -> list[tuple[Use]]:
    given = ids(3, 5)

    def new(part: Any, **more: Any) -> Filled:
        return Filled(part, V, D, H, F, L, N, **more)

    def with_cache(part: Any) -> Any:
        model = new(part).module
        cache = model.new_cache()
        return torch.cat([model(given[:, a:b], cache=cache) for a, b in pairwise((0, 3, 4, 5))], 1)

    def padded_cache(part: Any) -> Any:
        model, is_token = new(part).module, torch.tensor([[0, 0, 1, 1, 1], [1] * 5, [0, 1, 1, 1, 1]]).bool()
        cache = model.new_cache()
        return torch.cat([model(given[:, a:b], is_token[:, :b], cache)[:, -1:] for a, b in ((0, 3), (3, 5))], 1)

    def without_future(part: Any) -> Any:
        model, other = new(part).module, given.clone()
        other[:, 3:] = (other[:, 3:] + 1) % V
        return torch.allclose(model(given)[:, :3], model(other)[:, :3], atol=1e-4)

    def dropped(part: Any) -> Any:
        """With nearly all numbers of the blocks dropped, their weights do not matter, and the tokens do."""
        filled = new(part, rate=1 - 1e-7)
        model, half, quiet = filled.module.train(), new(part, rate=0.5).module.train(), new(part).module.train()
        with_blocks = model(given)
        with torch.no_grad():
            for name, x in filled.weights.items():
                x.mul_(0.0 if name.startswith("blocks.") else 1.0)
        return {
            "the rate acts on both additions of all blocks": torch.allclose(model(given), with_blocks),
            "the rate acts on the blocks alone": not torch.allclose(model(given), model((given + 1) % V)),
            "some numbers are dropped": not torch.allclose(half(given), half(given)),
            "none is dropped at the rate 0": torch.allclose(quiet(given), quiet(given)),
        }

    def spread(part: Any) -> Any:
        found = dict(part(500, 64, 4, 256, 2).named_parameters())
        return sorted(round(x.std().item() / 0.002) for x in found.values() if x.dim() == 2)

    return uses(
        logits=lambda part: new(part)(given),
        later_tokens_change_nothing=without_future,
        padding=lambda part: new(part).module(given, IS_TOKEN).masked_fill(~IS_TOKEN[..., None], 0.0),
        another_activation=lambda part: new(part, activation=torch.relu)(given),
        a_cache=with_cache,
        a_cache_and_padding=padded_cache,
        first_weights=spread,
        attributes=lambda part: [new(part).module.max_len, new(part).module.n_heads],
        dropout=dropped,
    )


def small_gpt(rate: float = 0.0) -> gpt.GPT:
    torch.manual_seed(0)
    model = gpt.GPT(V, D, H, F, L, N, rate=rate)
    block.draw_weights(model, 0.5)
    return model


def batch(source: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    inputs, labels = gpt.windows(torch.arange(200) % V, 4, 6, source)
    return (inputs,), labels


def evaluate_uses() -> list[tuple[Use]]:
    def run(part: Any) -> Any:
        model = small_gpt(0.5).train()
        (inputs,), labels = batch(generator())
        labels = labels.masked_fill(ids(4, 6, n=2) > 0, -100)
        found = part(model, [((inputs[:1],), labels[:1]), ((inputs[1:],), labels[1:])])
        return tuple(found), model.training

    def evaluating(part: Any) -> Any:
        model, seen = small_gpt().eval(), []
        model.register_forward_pre_hook(lambda module, given: seen.append(torch.is_grad_enabled()))
        return part(model, [batch(generator())]), {"mode": model.training, "gradients": seen}

    return uses(batches_with_different_counts=run, a_model_in_evaluation_mode=evaluating)


def groups_uses() -> list[tuple[Use]]:
    def run(part: Any) -> Any:
        model = small_gpt()
        names = {id(x): name for name, x in model.named_parameters()}
        groups = [(g.get("weight_decay", 0.01), sorted(names[id(x)] for x in g["params"])) for g in part(model, 0.3)]
        return dict(groups)

    def tied(part: Any) -> Any:
        model = transformer.Transformer(V, V, D, H, F, 1, N, is_bart=True)
        names = {id(x): name for name, x in model.named_parameters()}
        return {g["weight_decay"]: sorted(names[id(x)] for x in g["params"]) for g in part(model, 0.3)}

    return uses(groups=run, a_table_that_is_the_output_matrix_too=tied)


def step_uses() -> list[tuple[Use]]:
    def run(part: Any, scale: float = 1.0) -> Any:
        model = small_gpt()
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=9.0), []
        for rate in (0.1, 0.02):
            (inputs,), labels = batch(generator(3))
            losses.append(part(model, optimizer, scale * train.cross_entropy(model(inputs), labels), rate))
        return losses, model.norm.weight, model.get_parameter("blocks.0.up.weight")

    def two_groups(part: Any) -> Any:
        model = small_gpt()
        optimizer = torch.optim.SGD([{"params": [x]} for x in model.parameters()], lr=9.0)
        (inputs,), labels = batch(generator(3))
        part(model, optimizer, train.cross_entropy(model(inputs), labels), 0.1)
        return [x.detach() for x in model.parameters()], [g["lr"] for g in optimizer.param_groups]

    return uses(
        several_groups=two_groups,
        two_steps=run,
        long_gradients=lambda part: run(part, 100.0),
        short_gradients=lambda part: run(part, 1e-3),
    )


def fit_uses() -> list[tuple[Use]]:
    def fitted(part: Any, stops: list[int], **more: Any) -> Any:
        reported: list[Any] = []
        with tempfile.TemporaryDirectory() as folder:
            losses: list[float] = []
            for stop in stops:
                model = small_gpt(0.2).eval()
                torch.manual_seed(5 + len(losses))
                losses += part(
                    model, batch, stop, lambda step: 0.02 / step, Path(folder) / "run", every=4,
                    report=lambda step, loss: reported.append((step, loss)), **more,
                )  # fmt: skip
            return {"losses": losses, "weights": model.norm.weight, "reports": reported, "mode": model.training}

    def exactly(part: Any) -> Any:
        return torch.equal(fitted(part, [7])["weights"], fitted(part, [3, 7])["weights"])

    def learns(part: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            model = small_gpt()
            losses = part(model, batch, 30, lambda step: 0.05, Path(folder) / "run")
            return losses[-1] < 0.5 * losses[0]

    return uses(
        six_steps=lambda part: fitted(part, [6]),
        label_smoothing=lambda part: fitted(part, [3], smoothing=0.3),
        decay=lambda part: fitted(part, [3], decay=5.0),
        another_seed=lambda part: fitted(part, [3], seed=7),
        stopped_and_continued=lambda part: fitted(part, [3, 7]),
        equal_to_a_training_without_a_stop=exactly,
        a_training_that_is_done=lambda part: fitted(part, [3, 3]),
        learns_to_count=learns,
    )


def restored(save: Any, resume: Any) -> Any:
    """Return everything that comes back from the file of a training: with the reader's `save` or `resume`."""
    model, source = small_gpt(), generator(4)
    optimizer = torch.optim.AdamW(train.decay_groups(model, 0.1), lr=0.01)
    (inputs,), labels = batch(source)
    train.train_step(model, optimizer, train.cross_entropy(model(inputs), labels), 0.01)
    with tempfile.TemporaryDirectory() as folder:
        save(path := Path(folder) / "run", model, optimizer, source, 17)
        torch.manual_seed(99)
        other, source = gpt.GPT(V, D, H, F, L, N), generator(5)
        optimizer = torch.optim.AdamW(train.decay_groups(other, 0.1), lr=0.01)
        step = resume(path, other, optimizer, source)
    drawn = torch.rand(2), torch.rand(2, generator=source)
    weights = [x.detach().clone() for x in other.parameters()]
    states = [{k: 1000 * x for k, x in optimizer.state.get(x, {}).items()} for x in other.parameters()]
    return {"step": step, "random numbers": drawn, "weights": weights, "state": states}


def save_uses() -> list[tuple[Use]]:
    return uses(everything_comes_back=lambda part: restored(part, train.resume))


def resume_uses() -> list[tuple[Use]]:
    return uses(everything_comes_back=lambda part: restored(train.save, part))


def tensor_uses() -> list[tuple[Use]]:
    def kinds() -> dict[str, Tensor]:
        return {"a": normal(2, 3).mT, "b": torch.tensor(7), "c": normal(4).bfloat16(), "d": ids(3).to(torch.uint8)}

    def run(part: Any) -> Any:
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory() as folder:
            part(path := Path(folder) / "tensors", kinds())
            return load_file(path), len(list(Path(folder).iterdir()))

    def replaced(part: Any) -> Any:
        """Return whether the old file stays whole, under its other name, while the new one is written."""
        with tempfile.TemporaryDirectory() as folder:
            path, old = Path(folder) / "tensors", Path(folder) / "old"
            path.write_bytes(b"old")
            old.hardlink_to(path)
            part(path, kinds())
            return old.read_bytes() == b"old"

    def header(part: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            part(path := Path(folder) / "tensors", kinds())
            data = path.read_bytes()
        begin = data.index(b"{")
        found, _ = json.JSONDecoder().raw_decode(data[begin:].decode("latin-1"))
        return {
            "first bytes": int.from_bytes(data[:8], "little") < 1000,
            "first of {": begin,
            "header": {k: sorted(map(str, found[k].items())) for k in sorted(found)},
        }

    return uses(a_file_that_others_read=run, the_header=header, an_old_file=replaced)


def read_uses() -> list[tuple[Use]]:
    def run(part: Any, **more: Any) -> Any:
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory() as folder:
            save_file(
                {"a": normal(2, 3), "b": torch.tensor(7), "c": normal(4).half()}, path := Path(folder) / "t", **more
            )
            return part(path)

    return uses(a_file_of_others=run, a_file_with_notes=lambda part: run(part, metadata={"format": "pt"}))


def names_uses() -> list[tuple[Use]]:
    tensors = {"h.0.mlp.c_fc.bias": normal(2), "wte.weight": normal(3), "ln.h": normal(1)}
    return uses(
        the_given_tensors_stay=lambda part: (part(given := dict(tensors), {"h": "blocks"}), sorted(given)),
        parts_of_names=lambda part: part(dict(tensors), {"h": "blocks", "mlp": "", "c_fc": "up"}),
        none=lambda part: part(dict(tensors), {}),
        exchanged_names=lambda part: part({"a.b": normal(1)}, {"a": "b", "b": "a"}),
    )


def load_uses() -> list[tuple[Use]]:
    def run(part: Any, left_out: str = "") -> Any:
        model, state = nn.Linear(3, 2), {"weight": normal(2, 3), "bias": normal(2), "mask": normal(4)}
        state.pop(left_out, None)
        part(model, state)
        return list(model.parameters())

    def named(part: Any) -> Any:
        try:
            part(nn.Linear(3, 2), {"weight": normal(2, 3)})
        except KeyError as error:
            return "bias" in str(error)

    def another_order(part: Any) -> Any:
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        state = {"1.weight": normal(2, 2), "0.weight": normal(2, 2, seed=1)}
        part(model, state)
        with torch.no_grad():
            model.get_parameter("0.weight").add_(1.0)
        return list(model.parameters()), state

    return uses(
        exactly_these=another_order,
        tensors_too_many=run,
        a_weight_that_is_missing=lambda part: run(part, "bias"),
        the_name_in_the_error=named,
    )


def generate_uses() -> list[tuple[Use]]:
    def new(**more: Any) -> Any:
        return lambda part: part(small_gpt(0.5), [1, 2], 7, **more)

    def reads(part: Any) -> Any:
        """Return how many tokens the model reads in each step."""
        model, seen = small_gpt(), []
        model.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
        part(model, [1, 2, 3], 5)
        return seen

    def given_ids(part: Any) -> Any:
        part(small_gpt(), given := [1, 2], 3)
        return given

    def own_numbers(part: Any) -> Any:
        model, before = small_gpt(), torch.get_rng_state()
        part(model, [1, 2], 3, seed=5)
        return torch.equal(before, torch.get_rng_state())

    def quiet(part: Any) -> Any:
        model, seen = small_gpt(), []
        model.register_forward_pre_hook(lambda module, given: seen.append(torch.is_grad_enabled()))
        part(model, [1, 2], 3, seed=5)
        return seen

    return uses(
        the_largest_logit=new(temperature=0.0),
        sampling=new(seed=3),
        a_temperature=new(temperature=0.5, seed=4),
        top_k=new(k=3, seed=5),
        top_p=new(p=0.5, seed=6),
        all_together=new(temperature=1.5, k=6, p=0.8, seed=7),
        an_end=lambda part: part(
            small_gpt(), [1, 2], 7, temperature=0.0, end=part(small_gpt(), [1, 2], 7, temperature=0.0)[3]
        ),
        each_step_reads_one_token=reads,
        longer_than_the_model=lambda part: part(small_gpt(), [1, 2], 24, temperature=2.0, seed=8),
        few_ids=lambda part: part(small_gpt(), [1, 2], 3, temperature=0.0),
        the_given_ids_stay=given_ids,
        numbers_of_its_own_generator=own_numbers,
        no_gradients=quiet,
    )


def gpt2_uses() -> list[tuple[Use]]:
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (V, D),
        "wpe.weight": (N, D),
        "ln_f.weight": (D,),
        "ln_f.bias": (D,),
    }
    for number in range(L):
        part: dict[str, tuple[int, ...]] = {
            "ln_1.weight": (D,),
            "ln_1.bias": (D,),
            "ln_2.weight": (D,),
            "ln_2.bias": (D,),
        }
        part |= {"attn.c_attn.weight": (D, 3 * D), "attn.c_attn.bias": (3 * D,), "attn.c_proj.weight": (D, D)}
        part |= {"attn.c_proj.bias": (D,), "mlp.c_fc.weight": (D, F), "mlp.c_fc.bias": (F,)}
        part |= {"mlp.c_proj.weight": (F, D), "mlp.c_proj.bias": (D,), "attn.bias": (1, 1, N, N)}
        shapes |= {f"h.{number}.{name}": shape for name, shape in part.items()}
    tensors = {name: normal(*shape, seed=seed) / 2 for seed, (name, shape) in enumerate(shapes.items())}
    prefixed = {f"transformer.{name}": x for name, x in tensors.items()} | {"lm_head.weight": tensors["wte.weight"]}
    low = {
        name: torch.full_like(x, -2.2) if "c_fc.bias" in name else 0.02 * x if "c_fc" in name else x
        for name, x in tensors.items()
    }
    low = {
        name: 40 * x if "mlp.c_proj.weight" in name else x for name, x in low.items()
    }  # gelu(-2.2) is -0.0306, or -0.0304 with tanh
    return uses(
        the_gelu_of_gpt2=lambda part: part(low, H)(ids(3, 5)),
        logits=lambda part: part(tensors, H)(ids(3, 5)),
        names_with_a_prefix=lambda part: part(prefixed, H)(ids(3, 5)),
    )


# Chapter 11: instruments


def seen_gpt() -> gpt.GPT:
    """Return a model in which biases and norms matter, with blocks and heads that are not the last."""
    torch.manual_seed(0)
    model = gpt.GPT(V, D, 4, F, 3, N)
    block.draw_weights(model, 0.5)
    with torch.no_grad():
        for number, x in enumerate(x for x in model.parameters() if x.dim() == 1):
            x.add_(normal(*x.shape, seed=200 + number) / 2)
    return model.eval()


def look_uses(*more: Any) -> Any:
    """Return a use of an instrument, and whether hooks stay in the model."""

    def run(part: Any) -> Any:
        model = seen_gpt()
        before = model(ids(6, 5)).detach()
        found = part(model, ids(6, 5), *more)
        return {"found": found, "leaves no hook": torch.equal(before, model(ids(6, 5)))}

    return lambda: uses(a_small_model=run)


def capture_uses() -> list[tuple[Use]]:
    def run(part: Any) -> Any:
        model, names = small_gpt().eval(), ["blocks.1.attention.q", "blocks.0", "norm"]
        found = part(model, names, ids(2, 5))
        kept = {name: x.clone() for name, x in found.items()}
        part(model, names, ids(2, 5, seed=8))
        return {"found": kept, "hooks": sum(len(m._forward_hooks) for m in model.modules())}

    def fails(part: Any) -> Any:
        model = Fails()
        with suppress(RuntimeError):
            part(model, ["one"], normal(1, 2))
        return len(model.one._forward_hooks)

    def unknown(part: Any) -> Any:
        model = small_gpt()
        with suppress(KeyError):
            part(model, ["norm", "blocks.7"], ids(2, 5))
        return len(model.norm._forward_hooks)

    return uses(
        outputs_of_modules=run,
        an_error_of_the_model=fails,
        an_unknown_name=lambda part: part(small_gpt(), ["blocks.7"], ids(2, 5)),
        an_unknown_name_after_a_known_one=unknown,
    )


class Fails(nn.Module):
    """A model with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.one(x)
        raise RuntimeError("the model fails")


# Chapter 14: tuning


def template_uses() -> list[tuple[Use]]:
    turns = [("system", "Be kind."), ("user", " Hi\n"), ("assistant", "Hello!\nYes?")]
    return uses(three_turns=lambda part: part(turns), a_question=lambda part: part(turns[:2], ask=True))


def label_uses() -> list[tuple[Use]]:
    labels = ids(2, 5, seed=3).masked_fill(ids(2, 5, n=3) == 0, -100)

    def run(part: Any) -> Any:
        model, given = small_gpt().eval(), labels.clone()
        found = part(model, ids(2, 5), given)
        found.sin().sum().backward()
        return found, model.norm.weight.grad, given

    return uses(labels=run)


def grpo_uses() -> list[tuple[Use]]:
    old, scored = -normal(4, 5).abs(), torch.arange(5) < torch.tensor([[5], [3], [1], [4]])

    def run(scale: float, clip: float) -> Any:
        def of(part: Any) -> Any:
            log_p = (old + scale * normal(4, 5, seed=1)).requires_grad_()
            before = old.clone().requires_grad_()
            loss = part(log_p, before, torch.tensor([1.0, -0.5, 2.0, -1.5]), scored, clip)
            loss.backward()
            return loss, log_p.grad, before.grad

        return of

    return uses(the_first_update=run(0.0, 0.2), later_updates=run(0.5, 0.2), far_away=run(3.0, 0.1))


def lora_uses() -> list[tuple[Use]]:
    def new(part: Any, has_bias: bool = True) -> Any:
        torch.manual_seed(0)
        layer = nn.Linear(6, 4, bias=has_bias)
        mine = part(layer, 2, 8.0)
        return layer, mine, normal(3, 6)

    def start(part: Any) -> Any:
        layer, mine, x = new(part)
        return torch.allclose(layer(x), mine(x), atol=1e-5)

    def trained_layer(part: Any, has_bias: bool = True) -> Any:
        _, mine, x = new(part, has_bias)
        shapes = {tuple(weight.shape): weight for weight in mine.parameters() if weight.requires_grad}
        with torch.no_grad():
            for weight in shapes.values():
                weight.copy_(normal(*weight.shape, seed=weight.shape[0]))
        mine(x).sin().sum().backward()
        merged = mine.merged()
        frozen = [tuple(weight.shape) for weight in mine.parameters() if weight.grad is None]
        gradients = {shape: weight.grad for shape, weight in shapes.items()}
        return mine(x), gradients, merged(x), merged.weight, sorted(frozen)

    def first_a(part: Any) -> Any:
        [a] = [x for x in part(nn.Linear(400, 3), 50, 1.0).parameters() if x.shape == (50, 400)]
        return abs(a.std().item() - 0.05) < 0.003

    return uses(
        at_first_nothing_changes=start,
        outputs_gradients_and_merged=trained_layer,
        a_layer_without_bias=lambda part: trained_layer(part, has_bias=False),
        the_start_of_a=first_a,
    )


def alibi_cases() -> list[tuple[int, int]]:
    return [(2, 3), (8, 5), (1, 1)]


TEXTS, POSITIONS = "course/01-text-to-ids", "course/02-embeddings-and-positions"
GRU, ALIGNMENT, HEADS = "course/03-recurrent-encoder-decoder", "course/04-attention-is-alignment", "course/05-attention"
BLOCK, ASSEMBLED, HIDDEN, NEXT = "course/06-the-block", "course/07-the-transformer", "course/08-bert", "course/09-gpt"
DAMAGE, INSIDE, SCALE = "course/10-bart-and-t5", "course/11-looking-inside", "course/13-at-scale"
ANSWERS = "course/14-a-model-that-answers"

EXERCISES = [
    Exercise(tokenizer.Tokenizer, f"{TEXTS}#your-tokenizer", tokenizer_uses),
    Exercise(embeddings.alibi, f"{POSITIONS}#alibi-and-t5-a-number-added-to-the-score", alibi_cases),
    Exercise(embeddings.Embeddings, f"{POSITIONS}#your-embeddings", embeddings_uses),
    Exercise(recurrent.RecurrentEncoder, f"{GRU}#your-encoder", encoder_uses),
    Exercise(train.train_step, f"{GRU}#the-loss-and-a-step-of-training", step_uses),
    Exercise(recurrent.BahdanauDecoder, f"{ALIGNMENT}#two-decoders", decoder_uses),
    Exercise(recurrent.LuongDecoder, f"{ALIGNMENT}#two-decoders", decoder_uses),
    Exercise(recurrent.EncoderDecoder, f"{ALIGNMENT}#the-translator", translator_uses),
    Exercise(attention.MultiHeadAttention, f"{HEADS}#attention-as-a-module", attention_uses),
    Exercise(block.Residual, f"{BLOCK}#before-after-or-both", residual_uses),
    Exercise(block.Block, f"{BLOCK}#a-block-from-its-parts", block_uses),
    Exercise(block.draw_weights, f"{BLOCK}#the-first-weights", drawing_uses),
    Exercise(transformer.batch_of, f"{ASSEMBLED}#batches-of-pairs", batch_uses),
    Exercise(transformer.Transformer, f"{ASSEMBLED}#the-class-transformer", transformer_uses),
    Exercise(generate.translate, f"{ASSEMBLED}#many-sources-at-once", translate_uses),
    Exercise(bert.masked_batch, f"{HIDDEN}#hide-tokens-and-find-them-again", masked_batch_uses),
    Exercise(bert.BERT, f"{HIDDEN}#the-class-bert", bert_uses),
    Exercise(bert.fill, f"{HIDDEN}#fill", fill_uses),
    Exercise(gpt.windows, f"{NEXT}#a-text-two-splits-random-windows", windows_uses),
    Exercise(gpt.GPT, f"{NEXT}#the-model-written-out", gpt_uses),
    Exercise(train.decay_groups, f"{NEXT}#training", groups_uses),
    Exercise(train.evaluate, f"{NEXT}#training", evaluate_uses),
    Exercise(train.write_tensors, f"{NEXT}#a-file-of-tensors", tensor_uses),
    Exercise(train.read_tensors, f"{NEXT}#a-file-of-tensors", read_uses),
    Exercise(train.save, f"{NEXT}#a-loop-that-can-be-stopped", save_uses),
    Exercise(train.resume, f"{NEXT}#a-loop-that-can-be-stopped", resume_uses),
    Exercise(train.fit, f"{NEXT}#a-loop-that-can-be-stopped", fit_uses),
    Exercise(generate.generate, f"{NEXT}#a-context-that-slides", generate_uses),
    Exercise(bart.denoising_batch, f"{DAMAGE}#batches-of-damaged-texts", noise_uses),
    Exercise(look.capture, f"{INSIDE}#every-tensor-has-a-name", capture_uses),
    Exercise(look.weights_of, f"{INSIDE}#every-tensor-has-a-name", look_uses()),
    Exercise(look.lens, f"{INSIDE}#the-logit-lens", look_uses()),
    Exercise(look.ablate, f"{INSIDE}#ablation", look_uses(1, 2)),
    Exercise(look.patch, f"{INSIDE}#patching-where-the-information-is", look_uses(ids(6, 5, seed=4), 1, 2)),
    Exercise(attention.attention_by_tiles, f"{SCALE}#attention-by-tiles", tiles_uses),
    Exercise(block.Recomputed, f"{SCALE}#recomputation", recomputed_uses),
    Exercise(train.renamed, f"{ANSWERS}#weights-that-others-trained", names_uses),
    Exercise(train.load_weights, f"{ANSWERS}#weights-that-others-trained", load_uses),
    Exercise(gpt.from_gpt2, f"{ANSWERS}#weights-that-others-trained", gpt2_uses),
    Exercise(tune.template, f"{ANSWERS}#a-conversation-is-a-text", template_uses),
    Exercise(tune.log_p_of_labels, f"{ANSWERS}#labels-only-the-answers-count", label_uses),
    Exercise(tune.grpo_loss, f"{ANSWERS}#rewards-the-models-own-answers", grpo_uses),
    Exercise(tune.LoRA, f"{ANSWERS}#few-new-numbers-lora", lora_uses),
]
