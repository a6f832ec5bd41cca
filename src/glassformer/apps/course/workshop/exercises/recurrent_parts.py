"""Chapters 1 to 4: the tokenizer, embeddings, and the recurrent encoder-decoder, tested by their uses."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.course.mytransformer import embeddings, recurrent, tokenizer, train
from glassformer.apps.course.workshop.exercise import (
    IS_SOURCE,
    IS_TOKEN,
    D,
    Exercise,
    Filled,
    N,
    Use,
    V,
    generator,
    ids,
    normal,
    uses,
)
from glassformer.apps.course.workshop.exercises.lineages_parts import batch, small_gpt

TEXT = "the lowest and the lower tower: a newer, wider, slower tower — naïve!\n\nthe end 12 12 "

TEXTS, POSITIONS = "course/01-text-to-ids", "course/02-embeddings-and-positions"
GRU, ALIGNMENT = "course/03-recurrent-encoder-decoder", "course/04-attention-is-alignment"


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
        unknown_symbols=lambda part: (
            trained(part).encode("QQ the"),
            trained(part).encode_longest("Qthe"),
            trained(part).encode_longest("aQQQb"),
        ),
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


def alibi_cases() -> list[tuple[int, int]]:
    return [(2, 3), (8, 5), (1, 1)]


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
        a_step=lambda part: of(part, torch.ones_like(IS_SOURCE)),
        padding_in_the_source=lambda part: of(part, IS_SOURCE),
        first_weights=lambda part: all(bool(x.any()) for x in part(V, D).parameters()),
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


EXERCISES = [
    Exercise(tokenizer.Tokenizer, f"{TEXTS}#your-tokenizer", tokenizer_uses),
    Exercise(embeddings.alibi, f"{POSITIONS}#alibi-and-t5-a-number-added-to-the-score", alibi_cases),
    Exercise(embeddings.Embeddings, f"{POSITIONS}#your-embeddings", embeddings_uses),
    Exercise(recurrent.RecurrentEncoder, f"{GRU}#your-encoder", encoder_uses),
    Exercise(train.train_step, f"{GRU}#the-loss-and-a-step-of-training", step_uses),
    Exercise(recurrent.BahdanauDecoder, f"{ALIGNMENT}#two-decoders", decoder_uses),
    Exercise(recurrent.LuongDecoder, f"{ALIGNMENT}#two-decoders", decoder_uses),
    Exercise(recurrent.EncoderDecoder, f"{ALIGNMENT}#the-translator", translator_uses),
]
