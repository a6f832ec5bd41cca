"""Pitfalls 31 and 32: steps with a cache compute the same logits as one forward pass over the whole text."""

import pytest
import torch
from torch import Tensor

from configs import CROSS, GENERATORS, bytes_of, random_ids, random_model
from glassformer.models.state import TransformerState
from glassformer.models.transformer import Transformer
from tolerances import assert_close

GENERATED = pytest.mark.parametrize("name", GENERATORS)
LENGTHS = (3, 7, 1)


def close(ours: Tensor, expected: Tensor) -> None:
    assert_close(ours, expected)


class Story:
    """A model, rows of tokens, and the logits of one uncached forward pass over all rows."""

    def __init__(self, name: str, n_rows: int = 3, n_tokens: int = 14) -> None:
        self.model: Transformer = random_model(name)
        config = self.model.config
        self.token_ids = random_ids(config.vocab_size, n_rows, n_tokens)
        self.source: dict[str, Tensor] = {}
        if name in CROSS:
            ids = random_ids(config.encoder_vocab_size, n_rows, 6, seed=2)
            mask = torch.arange(6) < torch.tensor([6, 3, 5, 6])[:n_rows, None]
            self.source = {"source_ids": ids, "source_attention_mask": mask}
        with torch.no_grad():
            self.logits = self.model(self.token_ids, **self.source)

    def start(self, max_len: int = 14) -> TransformerState:
        with torch.no_grad():
            return self.model.start(len(self.token_ids), max_len, **self.source)

    def step(
        self, state: TransformerState, first: int, last: int, rows: Tensor | slice = slice(None)
    ) -> TransformerState:
        """Feed tokens `first` to `last` - 1 of every row and check their logits."""
        with torch.no_grad():
            logits, state = self.model.step(self.token_ids[rows, first:last], state)
        close(logits, self.logits[rows, first:last])
        return state

    def feed(
        self, state: TransformerState, lengths: tuple[int, ...], side: str = "right", past: int = 0
    ) -> TransformerState:
        """Feed tokens `past` to `past + lengths[row]` - 1 of each row in one padded batch; check real tokens."""
        width = max(lengths)
        token_ids = torch.zeros(len(lengths), width, dtype=torch.long)
        mask = torch.zeros(len(lengths), width, dtype=torch.bool)
        expected = []
        for row, n in enumerate(lengths):
            where = slice(0, n) if side == "right" else slice(width - n, width)
            token_ids[row, where] = self.token_ids[row, past : past + n]
            mask[row, where] = True
            expected.append(self.logits[row, past : past + n])
        with torch.no_grad():
            logits, state = self.model.step(token_ids, state, mask)
        close(logits[mask], torch.cat(expected))
        assert logits.isfinite().all()
        return state

    def each_its_own(self, state: TransformerState, n_steps: int) -> TransformerState:
        """Feed one more token per row, each at the row's own length."""
        rows = torch.arange(len(self.token_ids))
        for _ in range(n_steps):
            at = state.lengths
            with torch.no_grad():
                logits, state = self.model.step(self.token_ids[rows, at][:, None], state)
            close(logits[:, 0], self.logits[rows, at])
        return state


@GENERATED
def test_token_by_token_from_an_empty_state(name: str) -> None:
    story = Story(name)
    state = story.start()
    for t in range(14):
        state = story.step(state, t, t + 1)
    assert state.lengths.tolist() == [14, 14, 14]


@GENERATED
def test_prefill_then_single_steps_then_several_tokens(name: str) -> None:
    story = Story(name)
    state = story.step(story.start(), 0, 5)
    state = story.step(state, 5, 6)
    state = story.step(state, 6, 7)
    state = story.step(state, 7, 12)
    story.step(state, 12, 14)


@GENERATED
@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_of_unequal_length(name: str, side: str) -> None:
    story = Story(name)
    state = story.feed(story.start(), LENGTHS, side)
    assert state.lengths.tolist() == list(LENGTHS)
    story.each_its_own(state, 4)


@pytest.mark.parametrize(("number", "name"), list(enumerate(GENERATORS)))
def test_uneven_additions_to_a_filled_state(number: int, name: str) -> None:
    story, side = Story(name), ("left", "right")[number % 2]
    state = story.step(story.start(), 0, 4)
    state = story.feed(state, (2, 5, 1), side, past=4)
    story.each_its_own(state, 3)


@GENERATED
def test_a_row_of_padding_alone_stays_unchanged(name: str) -> None:
    """A finished row may be fed padding, even when it is full: its state does not change."""
    story = Story(name, n_tokens=24)  # every position of the learned tables
    state = story.feed(story.start(max_len=24), (24, 7, 1))
    for past in (7, 8):
        token_ids = torch.stack([torch.tensor(0), story.token_ids[1, past], torch.tensor(0)])[:, None]
        with torch.no_grad():
            logits, state = story.model.step(token_ids, state, torch.tensor([[False], [True], [False]]))
        close(logits[1, 0], story.logits[1, past])
        assert logits.isfinite().all()
    assert state.lengths.tolist() == [24, 9, 1]


@GENERATED
def test_select_expands_reorders_and_drops(name: str) -> None:
    story = Story(name)
    rows = torch.tensor([2, 0, 0, 1])
    state = story.step(story.start(), 0, 6).select(rows)
    state = story.step(state, 6, 7, rows)
    kept = torch.tensor([3, 1])
    state = story.step(state.select(kept), 7, 9, rows[kept])
    assert state.lengths.tolist() == [9, 9]


@GENERATED
def test_select_among_rows_of_unequal_length(name: str) -> None:
    story = Story(name)
    state = story.feed(story.start(), LENGTHS)
    rows = torch.tensor([2, 0])  # the longest row is dropped
    story.token_ids, story.logits = story.token_ids[rows], story.logits[rows]
    story.each_its_own(state.select(rows), 4)


def test_a_state_refuses_more_tokens_than_its_size() -> None:
    story = Story("llama")
    state = story.step(story.start(max_len=5), 0, 5)
    with pytest.raises(ValueError, match="expected at most 5 tokens in this state, got 6"):
        story.step(state, 5, 6)


def test_the_size_of_the_buffers() -> None:
    """2 layers × 3 rows × 2 key-value heads × (14 + 1) slots × (6 + 6) × 8 bytes."""
    assert bytes_of(Story("llama").start()) == 2 * 3 * 2 * 15 * 12 * 8
    story = Story("paper")  # and the source: 2 layers × 3 rows × 4 heads × 6 tokens × (4 + 4) × 8 bytes
    assert bytes_of(story.start()) == 2 * 3 * 4 * (15 + 6) * 8 * 8


def test_the_source_is_encoded_once_per_state() -> None:
    story = Story("paper")
    calls = []
    assert story.model.encoder is not None
    story.model.encoder.register_forward_hook(lambda *_: calls.append(1))
    state = story.start()
    for t in range(4):
        state = story.step(state, t, t + 1)
    assert len(calls) == 1


def test_a_model_without_decoder_has_no_steps() -> None:
    with pytest.raises(ValueError, match="encoder alone"):
        random_model("bert").start(1, 4)
