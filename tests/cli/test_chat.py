"""glassformer chat: a message, a file of turns, the commands of a terminal, and mistakes."""

import json
from pathlib import Path

import pytest

from cli.conftest import Glassformer
from glassformer import api
from runs import Tiny


@pytest.fixture(scope="module")
def folder(tiny: Tiny) -> Path:
    return tiny("conversations")


def test_a_message_and_a_file_of_turns_are_answered(glassformer: Glassformer, folder: Path) -> None:
    model = api.load(folder)
    first = model.chat("red dog", temperature=0)
    assert glassformer("chat", folder, "red dog", "--temperature", 0).out == f"{first}\n"
    found = glassformer(
        "chat", folder, "--input", "-", "--output", "c.jsonl", "--temperature", 0, stdin="red dog\n\nblue\n"
    )
    [line] = Path("c.jsonl").read_text().splitlines()
    messages = json.loads(line)["messages"]
    assert [message["content"] for message in messages[::2]] == ["red dog", "blue"]
    assert found.out == "".join(
        f"> {q['content']}\n{a['content']}\n" for q, a in zip(messages[::2], messages[1::2], strict=True)
    )
    assert messages[1]["content"] == first and messages[3]["content"] == model.chat(messages[:3], temperature=0)


def test_the_commands_of_a_terminal(glassformer: Glassformer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[list[dict[str, str]]] = []
    monkeypatch.setattr("glassformer.model.Model.inspect", lambda self, *, messages: looked.append(messages))
    typed = [
        "/look",
        "/retry",
        "red dog",
        "/retry",
        "/save c.jsonl",
        "/look",
        "/system small",
        "blue",
        "/save c.jsonl",
        "/wrong",
    ]
    typed += ["/save", "the red dog " * 60, "/help", "/reset", "/help", "/quit", "never"]
    found = glassformer("chat", folder, "--temperature", 0, stdin="\n".join(typed), terminal=True)
    assert found.code == 0
    saved = [json.loads(line)["messages"] for line in Path("c.jsonl").read_text().splitlines()]
    assert [[message["role"] for message in one] for one in saved] == [
        ["user", "assistant"],
        ["system", "user", "assistant"],
    ]
    assert looked == [saved[0]]
    for sentence in (
        "there is no answer to replace",
        "/wrong is not a command: type /help",
        "/save needs the name of a file",
        "the last message does not fit",
        "there is nothing to look at",
    ):
        assert sentence in found.err
    assert found.err.count("a new conversation begins") == 2
    assert "/system TEXT" in found.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("red", "--input", "x.txt"), "give a message or --input FILE, not both"),
        ((), "no message given: give one, or --input FILE (- for standard input), or run on a terminal"),
        (("--input", "missing.txt"), "missing.txt"),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], message: str, glassformer: Glassformer, folder: Path
) -> None:
    found = glassformer("chat", folder, *words)
    assert found.code == 2 and message in found.err and found.err.count("\n") == 1
