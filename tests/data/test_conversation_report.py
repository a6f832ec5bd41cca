"""The report on conversations: its numbers are those of the data, and of what a training reads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.config.run import ConversationData
from glassformer.data.conversations import ConversationCorpus
from glassformer.data.kinds import DataReport
from glassformer.data.rows import conversation_report
from glassformer.tokenization.conversations import ConversationEncoder, with_template
from glassformer.tokenization.tokenizer import Tokenizer

Write = Callable[[str, str | bytes], Path]
SYSTEM = {"role": "system", "content": "short"}


def exchange(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.fixture
def encoder() -> ConversationEncoder:
    return ConversationEncoder(with_template(Tokenizer.train(["system user assistant"], vocab_size=0)), "bytes")


CONVERSATIONS = [
    *([SYSTEM, *exchange(f"question {i}", "yes") * (1 + i % 2)] for i in range(40)),
    *[exchange("again", "yes")] * 3,
    exchange("long " * 60, "no"),
]
HELD_OUT = exchange("held out", "no")


def reported(write: Write, encoder: ConversationEncoder, context: int, **settings: Any) -> DataReport:
    lines = [json.dumps({"messages": one}) + "\n" for one in (*CONVERSATIONS, [SYSTEM])]
    path, valid = write("c.jsonl", "".join(lines)), write("v.jsonl", json.dumps({"messages": HELD_OUT}) + "\n")
    data = ConversationData(path=str(path), valid_path=str(valid), **settings)
    return conversation_report(ConversationCorpus(data), encoder, context)


def test_the_numbers_are_those_of_the_conversations(write: Write, encoder: ConversationEncoder) -> None:
    found = reported(write, encoder, 1000)
    assert (
        found.statistics["n_train"],
        found.statistics["n_valid"],
        found.statistics["n_repeats"],
        found.statistics["answers"],
    ) == (44, 1, 2, (1, 2, 2))
    assert found.statistics["roles"] == {"system": 40, "user": 65, "assistant": 65}
    lengths = sorted(len(encoder.encode(one).ids) for one in (*CONVERSATIONS, HELD_OUT))
    assert found.statistics["tokens"] == (lengths[22], lengths[43], lengths[44]) and found.statistics[
        "n_tokens"
    ] == sum(lengths)
    assert (found.statistics["n_cut"], found.statistics["n_left_out"]) == (0, 0)
    assert found.statistics["n_scored"] == 63 * len("yes") + 2 * len("no") + 65, "the answers, each with its end token"
    assert len(found.statistics["news"]) == 1 and found.statistics["news"][0].startswith("1 conversation has no answer")


def test_a_context_cuts_after_an_answer_or_leaves_out(write: Write, encoder: ConversationEncoder) -> None:
    context = len(encoder.encode(CONVERSATIONS[1]).ids) - 10  # of two turns
    found = reported(write, encoder, context)
    assert (found.statistics["n_cut"], found.statistics["n_left_out"]) == (20, 1)
    assert f"of {context} tokens: 20 conversations are cut after an answer, 1 are left out" in str(found)
    assert found.statistics["tokens"] == reported(write, encoder, 1000).statistics["tokens"], (
        "lengths are those before the cut"
    )


def test_all_tokens_are_scored_with_the_setting_all(write: Write, encoder: ConversationEncoder) -> None:
    found = reported(write, encoder, 1000, scored="all")
    assert found.statistics["n_scored"] == found.statistics["n_tokens"] - 45, (
        "the first token of a conversation is never predicted"
    )
