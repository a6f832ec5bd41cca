"""Conversations: what is scored, packing, what is too long, the end token, and data that cannot be used."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import ConversationConfig, ConversationData, LoraConfig
from glassformer.config.train import EarlyStopping
from glassformer.data.batching import NOT_SCORED
from glassformer.data.conversations import Conversation, ConversationCorpus
from glassformer.data.rows import ConversationRows, packed
from glassformer.models.build import build_model
from glassformer.objectives.causal import CausalObjective
from glassformer.tasks.conversation import LastQuestions
from glassformer.tokenization.conversations import ConversationEncoder, with_template
from glassformer.tokenization.tokenizer import Tokenizer
from runs import Recording, conversation_run, tiny_run, write_conversations, write_documents
from tolerances import assert_close

DRAW = np.random.default_rng(0)


@pytest.fixture(scope="module")
def encoder() -> ConversationEncoder:
    text = "user assistant system red blue dog cat rot blau hund katze\n"
    return ConversationEncoder(with_template(Tokenizer.train([text], vocab_size=300)), "the model")


def exchange(n_words: int = 1, n: int = 1) -> Conversation:
    question, answer = " ".join(["red"] * n_words), " ".join(["rot"] * n_words)
    pair = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Conversation(pair * n)


def test_labels_are_the_answers_and_their_end_tokens(encoder: ConversationEncoder) -> None:
    [example] = ConversationRows(encoder, 100).encode([exchange(2, n=2)])
    batch = CausalObjective().collate([example], DRAW)
    scored = batch.labels[batch.labels != NOT_SCORED].tolist()
    assert encoder.tokenizer.decode(scored, skip_special=False) == "rot rot<|im_end|>" * 2
    assert batch.n_targets == len(scored)
    following = batch.token_ids[0, 1:][batch.labels[0, :-1] != NOT_SCORED]
    assert scored[: len(following)] == following.tolist(), "the label of a position is the next id"


def test_packed_conversations_have_the_loss_of_single_ones(encoder: ConversationEncoder) -> None:
    """The same targets, and no token attends to another conversation."""
    rows = ConversationRows(encoder, 100).encode([exchange(1), exchange(3), exchange(2, n=2)])
    model = replace(conversation_run_model(), vocab_size=encoder.tokenizer.vocab_size)
    network, objective = build_model(model).eval(), CausalObjective()
    one_row = packed(rows, sum(len(row.token_ids) for row in rows))
    assert len(one_row) == 1
    with torch.no_grad():
        alone = [objective.loss(network, objective.collate([row], DRAW)) for row in rows]
        together = objective.loss(network, objective.collate(one_row, DRAW))
    assert together.n_targets == sum(one.n_targets for one in alone)
    assert_close(together.nats, sum(one.nats for one in alone))


def conversation_run_model() -> Any:
    from runs import MODEL

    return replace(MODEL, max_len=128)


def test_a_long_conversation_ends_after_an_answer_that_fits(encoder: ConversationEncoder) -> None:
    whole = encoder.encode(exchange(2, n=3).messages)
    rows = ConversationRows(encoder, whole.ends[1] + 3)
    [example] = rows.encode([exchange(2, n=3), exchange(200)])
    assert example.token_ids.tolist() == whole.ids[: whole.ends[1]]
    assert (rows.n_cut, rows.n_left_out) == (1, 1)
    assert "1 conversations are cut after an answer" in str(rows) and "1 are left out" in str(rows)


def test_a_trained_model_ends_its_answers(tmp_path: Path) -> None:
    """The end token of ChatML is the end token of the model, and a chat stops there."""
    reporter = Recording()
    model = api.train(conversation_run(tmp_path, max_steps=150, eval_every=150), tmp_path / "run", reporter).model
    end = model.tokenizer.vocab["<|im_end|>"]
    assert model.config.eos_id == model.conversation_encoder.end_id == end
    answer = model.chat("red dog", temperature=0, max_new_tokens=40)
    assert len(model.tokenizer.encode(answer)) < 40
    assert any("% of them scored" in line for line in reporter.messages)
    again = api.load(tmp_path / "run")
    assert again.chat("red dog", temperature=0, max_new_tokens=40) == answer


def test_a_language_model_learns_to_answer(tmp_path: Path) -> None:
    """Its tokenizer gets the control tokens of ChatML; with LoRA, a model without them is refused."""
    base = api.train(tiny_run(write_documents(tmp_path), max_steps=1), tmp_path / "base").model
    run = conversation_run(tmp_path, max_steps=1, eval_every=1)
    run = replace(run, init=replace(run.init, path=str(tmp_path / "base")))
    tuned = api.train(run, tmp_path / "tuned").model
    assert tuned.tokenizer.vocab_size == base.tokenizer.vocab_size + 2
    assert isinstance(tuned.chat("red"), str)
    with pytest.raises(UserError, match=r"\[lora\] would leave these new parameters untrained"):
        api.train(replace(run, lora=LoraConfig(rank=2)), tmp_path / "lora")
    again = replace(run, init=replace(run.init, path=str(tmp_path / "tuned")), lora=LoraConfig(rank=2))
    assert api.train(again, tmp_path / "adapted").model.config.eos_id == tuned.config.eos_id


# Data


def read(path: Path, **fields: str) -> list[Conversation]:
    data = ConversationData(path=str(path), **fields)  # type: ignore[arg-type]
    return list(ConversationCorpus(data).records(data, "train"))


def test_a_prompt_and_its_completion_are_a_conversation(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "red", "completion": "rot"}\n')
    (tmp_path / "a.tsv").write_text("source\ttarget\nred\trot\n")
    messages = [{"role": "user", "content": "red"}, {"role": "assistant", "content": "rot"}]
    in_parts = {"prompt": messages[:1], "completion": messages[1:]}
    (tmp_path / "b.jsonl").write_text(json.dumps(in_parts) + "\n" + json.dumps({"messages": messages}) + "\n")
    [one] = read(tmp_path / "a.jsonl")
    assert [one] == read(tmp_path / "a.tsv", prompt_field="source", completion_field="target")
    assert read(tmp_path / "b.jsonl") == [one, one]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "red"}', r"bad.jsonl:1 has no field 'messages'; it has 'text' \(set data.messages_field\)"),
        ('{"messages": "red"}', r"bad.jsonl:1: messages: expected a list"),
        ('{"messages": [{"role": "user"}]}', "content of message 1 must be a text"),
        ('{"prompt": "red"}', r"has no field 'completion'; .* \(set data.prompt_field, data.completion_field\)"),
        ('{"completion": "red"}', r"has no field 'prompt'; .* \(set data.prompt_field, data.completion_field\)"),
        ('{"prompt": "red", "completion": 3}', "bad.jsonl:1"),
    ],
)
def test_a_record_without_messages_is_refused_with_its_place(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(line + "\n")
    run = conversation_run(tmp_path, data={"path": str(tmp_path / "bad.jsonl")})
    with pytest.raises(UserError, match=message):
        api.train(run, tmp_path / "run")


def test_conversations_without_an_answer_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write_conversations(tmp_path, name="some")
    path.write_text(path.read_text() + '{"messages": [{"role": "user", "content": "red"}]}\n' * 2)
    reporter = Recording()
    run = conversation_run(tmp_path, data={"path": str(path)}, max_steps=1, eval_every=1)
    api.train(run, tmp_path / "run", reporter)
    assert any("2 conversations have no answer or lack a content and are skipped" in line for line in reporter.messages)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": ConversationConfig(), "data": "text"}, "data.kind: expected conversations"),
        ({"tokenizer": "dropout"}, "bpe_dropout does not apply to conversations"),
        ({"model": "encoder"}, "conversations need a Transformer with only"),
    ],
)
def test_a_run_that_does_not_suit_conversations_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run = conversation_run(tmp_path)
    if change.get("data") == "text":
        run = replace(run, data=tiny_run(write_documents(tmp_path)).data)
    elif "tokenizer" in change:
        run = replace(run, tokenizer=replace(run.tokenizer, bpe_dropout=0.1))
    else:
        run = replace(run, model=replace(run.model, encoder=run.model.decoder, decoder=None))
    with pytest.raises(UserError, match=message):
        api.train(run, tmp_path / "run")


def test_a_model_scores_other_conversations(tmp_path: Path) -> None:
    model = api.train(conversation_run(tmp_path, max_steps=1, eval_every=1), tmp_path / "run").model
    given = [{"prompt": "red dog", "completion": "rot hund"}] * 3
    report = model.evaluate(given)
    assert report.n_tokens == 3 * (len(model.tokenizer.encode("rot hund")) + 1)
    assert report.scores == {"exact_match": 0.0}
    with pytest.raises(UserError, match="record 1 of the data has no 'messages'"):
        model.evaluate([{"other": "red"}])


def test_questions_that_do_not_fit_the_context_stop_no_training(tmp_path: Path) -> None:
    """They are left out of the samples and of exact_match, which is refused if no question fits."""
    path = write_conversations(tmp_path, name="some")
    long = {"messages": [{"role": "user", "content": "red " * 90}, {"role": "assistant", "content": "rot"}]}
    valid = tmp_path / "valid.jsonl"
    valid.write_text(json.dumps(long) + "\n" + "".join(path.read_text().splitlines(keepends=True)[:4]))
    watched: dict[str, Any] = {"early_stopping": EarlyStopping("exact_match"), "max_steps": 10}
    run = conversation_run(tmp_path, data={"path": str(path), "valid_path": str(valid)}, **watched)
    model = api.train(run, tmp_path / "run").model
    notes: list[str] = []
    assert "exact_match" in model.scores(log=notes.append)
    assert any("1 conversations have no room for an answer" in note for note in notes)
    with pytest.raises(UserError, match="no conversation leaves room for an answer"):
        LastQuestions(model.writer, model.conversation_encoder, [Conversation(tuple(long["messages"]))], 8)
