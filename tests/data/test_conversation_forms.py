"""Conversations in the forms of other tools: ShareGPT, Alpaca, weights, calls of tools, other names of roles."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chat_templates import CALL, TEMPLATES
from glassformer.common.chat_messages import WEIGHTS, require_messages, text_of
from glassformer.common.errors import UserError
from glassformer.config.run import ConversationData
from glassformer.data.conversations import Conversation, ConversationCorpus
from glassformer.data.recognition import recognise, recognise_rows
from glassformer.data.rows import ConversationRows, conversation_report
from glassformer.tokenization.conversations import ConversationEncoder, ToolCallsNotReadError, with_template
from glassformer.tokenization.tokenizer import Tokenizer

Write = Callable[[str, str | bytes], Path]
TOKENS = ("<s>", "</s>", "<|end|>", "<|user|>", "<|assistant|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENIZER = Tokenizer.train(["user assistant system"], vocab_size=0, special_tokens=TOKENS)
OWN = ConversationEncoder(with_template(TOKENIZER), "the model")


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: Any, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


def encoder_of(source: str) -> ConversationEncoder:
    roles = {"bos": "<s>", "eos": "</s>"}
    return ConversationEncoder(Tokenizer.imported(TOKENIZER.to_json(), roles).with_chat_template(source), "m")


def scored_text(encoder: ConversationEncoder, messages: list[dict[str, Any]], scored: Any = "assistant") -> str:
    found = encoder.encode(require_messages(messages), scored)
    ids = [i for i, is_one in zip(found.ids, found.is_scored, strict=True) if is_one]
    return encoder.tokenizer.decode(ids, skip_special=False)


def read(path: Path) -> tuple[list[Conversation], ConversationCorpus, str]:
    recognised = recognise(str(path))
    assert isinstance(recognised.data, ConversationData)
    corpus = ConversationCorpus(recognised.data)
    return corpus.whole(), corpus, recognised.evidence


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# Forms of records


def test_sharegpt_is_recognised_and_read(write: Write) -> None:
    said = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    calls = [
        said[0],
        {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": "Four."},
    ]
    rows = ({"conversations": said, "id": 1}, {"conversations": said, "system": "s"}, {"conversations": calls})
    found, corpus, evidence = read(write("s.jsonl", lines(*rows)))
    assert evidence == "conversations in the form of ShareGPT, by the column conversations"
    assert found[0].messages == (user("a"), answer("b"))
    assert found[1].messages == ({"role": "system", "content": "s"}, user("a"), answer("b"))
    function = {"name": "f", "arguments": {"x": 1}}
    assert [message["role"] for message in found[2].messages] == ["user", "assistant", "tool", "assistant"]
    assert found[2].messages[1]["tool_calls"] == [{"type": "function", "function": function}]
    assert corpus.n_of_roles == {("human", "user"): 3, ("gpt", "assistant"): 3, ("observation", "tool"): 1}


def test_alpaca_is_recognised_and_read(write: Write) -> None:
    rows = (
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        {"instruction": "Say hi.", "input": "", "output": "hi"},
        {"instruction": "No answer.", "input": "", "output": ""},
    )
    found, corpus, evidence = read(write("a.jsonl", lines(*rows)))
    assert evidence == "conversations in the form of Alpaca, by the columns instruction and output"
    assert [one.messages for one in found] == [(user("Add.\n\n1 2"), answer("3")), (user("Say hi."), answer("hi"))]
    assert corpus.dropped.n_empty == 1
    table = "instruction,input,output\nAdd.,1 2,3\n"
    assert read(write("a.csv", table))[0][0].messages == found[0].messages


def test_data_in_memory_keeps_the_fields_beside() -> None:
    rows: list[dict[str, Any]] = [{"instruction": "Add.", "input": "1 2", "output": "3", "other": 1}]
    assert json.loads(recognise_rows(rows, None, {})[1][0]) == {"instruction": "Add.", "input": "1 2", "output": "3"}


def test_other_columns_and_kinds_are_unchanged(write: Write) -> None:
    path = write("p.jsonl", lines({"messages": [user("a"), answer("b")], "conversations": 7, "input": "x"}))
    assert read(path)[0][0].messages == (user("a"), answer("b"))
    with pytest.raises(UserError, match="has the columns"):
        recognise(str(write("t.jsonl", lines(*[{"conversations": "text", "x": 1, "y": 2}] * 3))))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": []},
        {"messages": None},
        {"messages": [user("q")]},
        {"messages": [user("q"), answer("")]},
        {"messages": [user("q"), answer(None)]},
        {"messages": [user(None), answer("a")]},
        {"messages": [user("q"), answer("a", weight=0)]},
        {"prompt": None, "completion": "a"},
        {"prompt": "q", "completion": None},
    ],
)
def test_one_record_without_an_answer_stops_no_other(write: Write, row: dict[str, Any]) -> None:
    good = [{"messages": [user(f"q{i}"), answer("a")]} for i in range(20)]
    path = write("m.jsonl", lines(*good[:5], row, *good[5:]))
    corpus = ConversationCorpus(ConversationData(path=str(path)))
    assert len(corpus.whole()) == 20
    assert corpus.dropped.n_empty == 1 and corpus.dropped.first_empty.endswith(":6")


def test_the_notes_name_renamed_roles_and_weights(write: Write) -> None:
    rows = [{"messages": [{"role": "User", "content": f"q{i}"}, answer("a", weight=0), answer("b")]} for i in range(30)]
    corpus = ConversationCorpus(ConversationData(path=str(write("m.jsonl", lines(*rows)))))
    assert corpus.news() == [
        "messages are read with the usual names of their roles: 30 of User as user",
        "30 answers have the weight 0, and are not scored",
    ]
    report = conversation_report(corpus, OWN, 1000)
    assert report.statistics["n_not_trained"] == 30 and report.statistics["n_scored"] == 30 * len("b.")
    assert "30 answers have the weight 0" in str(report)


# Weights


@pytest.mark.parametrize("key", WEIGHTS)
@pytest.mark.parametrize("value", [0, False, 0.0])
@pytest.mark.parametrize("block", [False, True])
def test_an_answer_with_the_weight_0_is_not_scored(key: str, value: Any, block: bool) -> None:
    source = OWN.template.source
    if block:
        said = "{{ message.content }}<|im_end|>"
        source = source.replace(
            said,
            f"{{% if message.role == 'assistant' %}}{{% generation %}}{said}{{% endgeneration %}}"
            f"{{% else %}}{said}{{% endif %}}",
        )
    encoder = encoder_of(source)
    messages = [user("1"), answer("wrong", **{key: value}), user("2"), answer("right", **{key: 1})]
    assert scored_text(encoder, messages) == "right<|im_end|>"
    assert scored_text(encoder, [*messages[:3], answer("right")]) == "right<|im_end|>"
    whole = scored_text(encoder, messages, "all")
    assert "wrong" not in whole and "2<|im_end|>" in whole and whole.startswith("<|im_start|>user\n1")
    with pytest.raises(UserError, match="nothing to learn"):
        encoder.encode(require_messages(messages[:2]))


@pytest.mark.parametrize("value", [0.5, 2, "0", [0]])
def test_other_weights_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match="weight of message 1 must be 0 or 1"):
        require_messages([answer("a", weight=value)])


def test_a_conversation_is_cut_only_after_an_answer_that_is_scored() -> None:
    messages = require_messages([user("1"), answer("x", weight=0), user("2"), answer("y" * 50)])
    n = OWN.encode(messages).ends[0]
    rows = ConversationRows(OWN, n + 5)
    assert rows.encode([Conversation(tuple(messages))]) == [] and rows.n_left_out == 1


# Calls of tools, and contents of parts

TOOL = [user("q"), answer(None, tool_calls=[CALL]), {"role": "tool", "content": "4", "tool_call_id": "1"}, answer("4.")]


def test_calls_of_tools_are_read_by_a_template_that_knows_them() -> None:
    encoder = encoder_of(TEMPLATES["qwen 2.5, tools"])
    text = scored_text(encoder, TOOL)
    call = '\n<tool_call>\n{"name": "area", "arguments": {"x": 1.5, "é": [null, "<b>"]}}\n</tool_call><|im_end|>'
    assert text in (f"{call}4.<|im_end|>", f"{call[1:]}4.<|im_end|>")
    assert encoder.prompt(require_messages(TOOL[:3]))


def test_calls_of_tools_are_left_out_and_counted_if_the_template_does_not_know_them() -> None:
    with pytest.raises(ToolCallsNotReadError, match="message 2 calls a tool, and the chat template does not read"):
        OWN.encode(require_messages(TOOL))
    rows = ConversationRows(OWN, 1000)
    plain = Conversation((user("q"), answer("a")))
    assert len(rows.encode([plain, Conversation(tuple(require_messages(TOOL))), plain])) == 2
    assert "1 are left out: they call tools, which the chat template does not read" in str(rows)


def test_messages_with_calls_need_no_content() -> None:
    assert require_messages([{"role": "assistant", "tool_calls": [CALL]}])[0]["content"] is None
    for message in (answer(None), answer(None, tool_calls=[]), user(None)):
        with pytest.raises(UserError, match="content of message 1 must be a text, got None"):
            require_messages([message])


PARTS = [{"type": "text", "text": " ab"}, {"type": "python", "python": "c "}, "d"]


def test_parts_are_joined_for_templates_that_read_texts() -> None:
    messages = require_messages([user(PARTS), answer([{"type": "text", "text": "yes"}])])
    assert text_of(messages[0]) == " abc d" and scored_text(OWN, messages) == "yes<|im_end|>"
    assert OWN.prompt(messages[:1]) == OWN.prompt([user(" abc d")])


def test_templates_that_read_parts_get_them() -> None:
    """A template of Gemma 3 removes the spaces around each part, and leaves out parts of other types."""
    encoder = encoder_of(TEMPLATES["gemma 3, parts"])
    ids = encoder.prompt(require_messages([user(PARTS)]))
    assert encoder.tokenizer.decode(ids).count("abd") == 1


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, 7, {"type": "text"}, None])
def test_parts_without_a_text_are_refused(part: Any) -> None:
    with pytest.raises(UserError, match="content of message 1 has a part without a text"):
        require_messages([user([part])])


# One end token after the whole conversation

NO_ENDS = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)


def test_several_turns_are_trained_with_one_end_after_all_of_them() -> None:
    messages = [user("1"), answer("two"), user("3"), answer("four")]
    assert scored_text(encoder_of(NO_ENDS), messages) == "two\nfour\n</s>"
    encoder = encoder_of(TEMPLATES["phi 3.5"])
    assert scored_text(encoder, messages) == "two<|end|>four<|end|>"
    assert encoder.tokenizer.id_to_token(encoder.end_id) == "<|end|>"
    assert encoder_of(NO_ENDS).tokenizer.id_to_token(encoder_of(NO_ENDS).end_id) == "</s>"
    for one in (encoder, encoder_of(NO_ENDS)):
        ids = one.encode(messages).ids
        for n in (1, 3):
            read = one.prompt(messages[:n])
            assert ids[: len(read)] == read
