"""glassformer chat DIR"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.apps.cli.arguments import Dir, File, Sampling
from glassformer.apps.cli.inputs_outputs import Drafting, input_text, reported_errors, require_output, typed_lines
from glassformer.apps.cli.progress import err
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.data.formats import lines

if TYPE_CHECKING:
    from glassformer.inference.chat import Chat
    from glassformer.model import Model

HELP = """/system TEXT  begin again with this system message
/reset        begin again
/retry        answer the last message again, with other random numbers
/save FILE    add the conversation to a jsonl file, as `glassformer train` reads it
/look         open the inspector on the conversation; Ctrl-C returns here
/quit         end (or Ctrl-D); Ctrl-C stops an answer"""


def main(
    directory: Dir,
    message: str | None = None,
    /,
    *,
    system: str | None = None,
    input: File | None = None,
    output: Path | None = None,
    sampling: Sampling,
    loading: Drafting,
) -> int:
    """Talk with a model that learned conversations; without a message, on the terminal.

    The model's cache is kept between turns, so that each turn reads only what is new. When the context is full, the
    oldest turns are left out, with a note.

    Args:
        message: The message of the user; its answer is printed.
        system: The system message: instructions for all answers.
        input: A file of messages, or - for standard input: each line is a turn of one conversation.
        output: The jsonl file to which the conversation is added at its end.

    Examples:
        glassformer chat runs/answers "What is 2 plus 3?"
        glassformer chat smollm2 --system "Answer in one sentence." --temperature 0.2
        glassformer chat runs/answers --input questions.txt --output answers.jsonl
    """
    # Arguments
    loading.find([directory])
    if message is not None and input is not None:
        raise UserError("give a message or --input FILE, not both")
    turns = None
    if message is not None:
        turns = [message]
    elif input is not None:
        turns = [line for line in lines(input_text(input)) if line.strip()]
    if turns is None and not sys.stdin.isatty():
        raise UserError("no message given: give one, or --input FILE (- for standard input), or run on a terminal")
    if output is not None:
        require_output(output, [directory, loading.draft, input])
    loading.require_draft(sampling)
    # Model
    model = loading.ensemble([directory], "chat")
    talk = Talk(model, sampling | loading.draft_model(), system)
    # Turns
    if turns is None:
        for line in typed_lines(f"{model.name}: type a message and press Enter; /help shows what else"):
            with reported_errors():
                if line.strip() == "/quit":
                    break
                talk.turn(line)
    for turn in turns or ():
        if len(turns or ()) > 1:
            print(f"> {turn}")
        talk.say(turn)
    if output is not None:
        talk.save(str(output))
    return 0


class Talk:
    """A conversation on a terminal."""

    def __init__(self, model: "Model", settings: dict[str, Any], system: str | None) -> None:
        self.model, self.settings = model, settings
        self.chat: Chat
        self._begin(system)
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: print(HELP),
            "/system": self._begin_again,
            "/reset": lambda _: self._begin_again(self._system),
            "/retry": lambda _: self._retry(),
            "/save": self.save,
            "/look": lambda _: self._look(),
        }

    @property
    def _system(self) -> str | None:
        first = next(iter(self.chat.messages), None)
        if first is None or first["role"] != "system":
            return None
        return first["content"]

    def _begin(self, system: str | None) -> None:
        messages = []
        if system:
            messages.append({"role": "system", "content": system})
        self.chat = self.model.conversation(messages, log=err)

    def _begin_again(self, system: str | None) -> None:
        self._begin(system)
        err("a new conversation begins")

    def turn(self, line: str) -> None:
        """Run a command, or answer a message."""
        command, _, argument = line.strip().partition(" ")
        if command in self._commands:
            self._commands[command](argument.strip())
        elif command.startswith("/"):
            raise UserError(f"{command} is not a command: type /help to see them")
        elif command:
            self.say(line)

    def say(self, message: str) -> None:
        """Print the answer to a message; remove a message that does not fit the context."""
        n_before = len(self.chat.messages)
        self.chat.add("user", message)
        try:
            self._answer(self.settings)
        except UserError:
            del self.chat.messages[n_before:]
            raise

    def _answer(self, settings: dict[str, Any]) -> None:
        pieces = self.chat.answer(*self.model.chat_settings(**settings))
        try:
            for piece in pieces:
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            pieces.close()
            err(" stopped")
        else:
            print()

    def _retry(self) -> None:
        if len(self.chat.messages) < 2 or self.chat.messages[-1]["role"] != "assistant":
            raise UserError("there is no answer to replace: type a message first")
        self.chat.messages.pop()
        self._answer(self.settings | {"seed": None})

    def save(self, file: str) -> None:
        """Add the conversation to a jsonl file."""
        if not file:
            raise UserError("/save needs the name of a file: /save conversation.jsonl")
        path = files.as_path(file, "FILE")
        earlier = files.read_text(path) if path.exists() else ""
        if earlier and not earlier.endswith("\n"):
            earlier += "\n"
        files.write_text(path, earlier + json.dumps({"messages": self.chat.messages}, ensure_ascii=False) + "\n")
        err(f"the conversation is in {path}")

    def _look(self) -> None:
        if not self.chat.messages:
            raise UserError("there is nothing to look at: type a message first")
        self.model.inspect(messages=self.chat.read_messages)
