"""Conversations as ids: what a model reads before it answers, and what a training scores.

A special token that is written in a message never acts as a special token. The text is what transformers renders. A
second rendering, in which the messages have no special tokens, shows which characters of the text are the template's.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from glassformer.common.chat_messages import ASSISTANT, Message, is_trained, text_of, texts_in, with_texts
from glassformer.common.errors import UserError, quoted
from glassformer.tokenization.chat_template import CHATML, CHATML_TOKENS, TRAINING_DAY, Asked, ChatTemplate, Rendered
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.validate_tokenizer_json import ROLES

Scored = Literal["assistant", "all"]
"""Tokens that a training scores: the answers of the assistant with their end tokens, or every token after the first."""
Span = tuple[int, int]
"""Index of the first character, and of the character after the last."""
MASK = "\ufdd2"
"""Code point that replaces each character of a special token in a message. It is not a character, so no text has it."""
PROBE = ({"role": "user", "content": "a"}, {"role": ASSISTANT, "content": "b"})


class ToolCallsNotReadError(UserError):
    """Messages call tools, and the chat template does not read such calls."""


@dataclass(frozen=True)
class EncodedConversation:
    """A conversation as ids, and which of them a training scores."""

    ids: list[int]
    is_scored: list[bool]
    ends: list[int]
    """The number of ids up to the end of each answer: where the conversation may be cut."""


@dataclass(frozen=True)
class _Text:
    text: str
    written: list[Span]
    """Spans of the special tokens that messages contain. They are encoded as ordinary text."""
    before: dict[int, Rendered] = field(default_factory=dict)
    """The text that a model reads before an answer. The key is the number of the answer's message."""
    after: dict[int, Rendered] = field(default_factory=dict)
    """The text of the messages up to and including an answer. The key is the number of the answer's message."""
    blocks: list[Span] | None = None

    @property
    def borders(self) -> list[int]:
        """Indices of characters at which an answer begins, after the text that the model reads."""
        ends = {len(one.text) for one in self.before.values() if not one.error and self.text.startswith(one.text)}
        return sorted(ends.union(begin for begin, _ in self.blocks or ()) - {0, len(self.text)})


class ConversationEncoder:
    """A tokenizer with a chat template.

    >>> tokenizer = with_template(Tokenizer.train(["user assistant 1+2=3"], vocab_size=0, scheme="char"))
    >>> encoder = ConversationEncoder(tokenizer, "the model")
    >>> encoded = encoder.encode([{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "=3"}])
    >>> tokenizer.tokens(i for i, scored in zip(encoded.ids, encoded.is_scored) if scored)
    ['=', '3', '<|im_end|>']
    """

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        """Set the tokenizer of a model called `name`; raise `UserError` if it has no chat template."""
        source = tokenizer.chat_template
        if isinstance(source, list):
            source = {one["name"]: one["template"] for one in source}.get("default")
        if source is None:
            raise UserError(
                f"{name} has no chat template, so it has not learned conversations: train it on some "
                "(objective.kind conversation), or import a model with a template"
            )
        ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
        tokens = {f"{role}_token": tokenizer.id_to_token(i) for role, i in ids.items() if i is not None}
        self.tokenizer, self.template = tokenizer, ChatTemplate(source, tokens)
        special = tokenizer.special_tokens
        self._control = tokenizer.special_ids - {tokenizer.unk_id}
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
        signs = {sign for token in special for sign in token if not (sign.isalnum() or sign.isspace() or sign == "_")}
        self._sign = re.compile(f"[{re.escape(''.join(sorted(signs)))}]" if signs else "(?!)")
        self._plain_ids = lru_cache(maxsize=1024)(lambda text: tokenizer.encode(text))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids that a model reads before it writes the next message."""
        return self._ids(self._text(messages, asks=True))[0]

    def read(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of messages; if the last one is not an answer, they end where the next answer begins."""
        return self._ids(self._text(messages, asks=messages[-1]["role"] != ASSISTANT))[0]

    def encode(self, messages: Sequence[Message], scored: Scored = "assistant") -> EncodedConversation:
        """Return the ids of a conversation, and which of them are scored.

        An answer is scored up to the token that ends it, unless its weight is 0. Answers are the blocks
        `{% generation %}` of the template, as in transformers. Without such blocks, they are what each message of the
        assistant adds to the text of the messages before it. The ids that `prompt` returns for the messages before an
        answer are the first ids of the conversation. Raises `UserError` if there is no answer, if one has no end token,
        and if a message changes the text before it.
        """
        # 1. The answers, as characters of the text.
        read, marks = self._text(messages, learns=True), self.template.marks_answers
        answers = read.blocks if marks else list(self._added(read))
        if answers is None:
            raise UserError(
                "the chat template nests, cuts or changes its blocks {% generation %}, so the answers cannot be found: "
                "put each block around the text of one answer"
            )
        are_trained = self._are_trained(messages, len(answers))
        # 2. For each answer, the token that ends it, and the tokens that are scored.
        ids, places = self._ids(read)
        is_scored, ends = np.full(len(ids), scored == "all"), []
        for number, ((begin, end), is_one) in enumerate(zip(answers, are_trained, strict=True)):
            after = self._after_end(ids, places, (begin, end), read.text)
            if after is None and self._special.search(self._tail) and not marks:
                is_last = number == len(answers) - 1 and read.text[end:] == self._tail
                end += len(self._tail) * is_last  # one end token after the whole conversation
                after = self._after_end(ids, places, (begin, end), read.text) if is_last else _n_within(places, end)
            if after is None:
                raise UserError(
                    "the chat template does not end an answer with a special token of the tokenizer, so a model would "
                    "never learn to stop: end each answer with one, inside of the block {% generation %} if it has one"
                )
            ends.append(after)
            end_of_scored = _n_before(places, end) if marks else after
            is_scored[_n_within(places, begin) : end_of_scored] = is_one
        if not is_scored.any():
            raise UserError(
                "no message of the assistant is in the text, or all have weight 0: there is nothing to learn"
            )
        return EncodedConversation(ids, is_scored.tolist(), ends)

    @cached_property
    def end_id(self) -> int:
        """Id of the token that ends an answer; raises `UserError` if the template has no such token."""
        encoded = self.encode(PROBE)
        return encoded.ids[encoded.ends[-1] - 1]

    # The text

    def _text(self, messages: Sequence[Message], *, asks: bool = False, learns: bool = False) -> _Text:
        """Render messages; find the special tokens that they contain, and the text before each answer.

        Two further renderings keep a message from writing a token that acts as a special token. In `masked`, the
        special tokens of messages are masked, so every special token in it is the template's. Text and `masked` must be
        equal outside of the masks. In `bare`, every sign of a special token in messages is masked too, so no special
        token in it is put together from parts in messages. `bare` must have the same special tokens as `masked`.
        """
        # 1. The renderings.
        messages = self._seen(messages)
        masked = with_texts(messages, lambda text: self._special.sub(_mask, text))
        bare = with_texts(masked, lambda text: self._sign.sub(_mask, text))
        numbers = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
        asked = {
            ("text", 0): Asked(messages, asks=asks),
            **({("masked", 0): Asked(masked, asks=asks)} if masked != messages else {}),
            **({("bare", 0): Asked(bare, asks=asks)} if bare != masked else {}),
            **({("blocks", 0): Asked(messages, asks=asks, marks=True)} if self.template.marks_answers else {}),
            **{("before", number): Asked(messages, number, asks=True) for number in numbers},
            **{("after", number): Asked(messages, number + 1) for number in numbers if learns},
        }
        day = TRAINING_DAY if learns else None
        found = dict(zip(asked, self.template.texts(list(asked.values()), day=day), strict=True))
        # 2. Special tokens are either the template's or a message's.
        text = found["text", 0].checked()
        of_template = found.get(("masked", 0), found["text", 0])
        if not _equals_but_for_masks(text, of_template.text):
            raise self._changed(messages, text, asks)
        if self._special.findall(found.get(("bare", 0), of_template).text) != self._special.findall(of_template.text):
            sign = self._sign.search("\n".join(texts_in(masked)))
            raise UserError(
                "the chat template makes a special token from parts of one in a message, or leaves one out: remove "
                f"signs such as {sign and sign.group()!r} from the messages"
            )
        # 3. The parts of the text.
        before, after = ({n: one for (name, n), one in found.items() if name == key} for key in ("before", "after"))
        written = [match.span() for match in re.finditer(f"{MASK}+", of_template.text)]
        return _Text(text, written, before, after, found["blocks", 0].blocks if self.template.marks_answers else None)

    def _seen(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages as the template reads them: their parts are joined, unless it reads lists of parts."""
        seen = [dict(message) for message in messages]
        for number, message in enumerate(seen, 1):
            if message.get("tool_calls") and "tool_calls" not in self.template.source:
                raise ToolCallsNotReadError(
                    f"message {number} calls a tool, and the chat template does not read tool_calls: remove the "
                    "conversation, or use a model whose template reads them"
                )
            if isinstance(message["content"], list) and not self._reads_parts:
                message["content"] = text_of(message)
        return seen

    @cached_property
    def _reads_parts(self) -> bool:
        """True if the template writes the texts of a list of parts, and not the list."""
        parts = [{"type": "text", "text": "probe"}]
        text = self.template.texts([Asked([{"role": "user", "content": parts}])])[0].text
        return "probe" in text and "type" not in text

    @cached_property
    def _tail(self) -> str:
        """Special tokens that the template writes after the last message only, such as an end of the whole text."""
        found = self.template.texts([Asked(PROBE), Asked(PROBE * 2)], day=TRAINING_DAY)
        one = found[0].text
        n = next((i for i, (a, b) in enumerate(zip(one, found[1].text, strict=False)) if a != b), len(one))
        n = next((match.start() for match in self._special.finditer(one) if match.start() < n < match.end()), n)
        return one[n:] if re.fullmatch(rf"(?:{self._special.pattern}|\s)*", one[n:]) else ""

    def _changed(self, messages: Sequence[Message], text: str, asks: bool) -> UserError:
        """Return the error that names the message in which the template changes the text of a special token."""
        tokens = {
            number: match.group()
            for number, message in enumerate(messages)
            for match in [self._special.search("\n".join(texts_in(message)))]
            if match
        }
        for number in tokens:
            masked = [*messages[:number], with_texts(messages[number], lambda text: self._special.sub(_mask, text))]
            [found] = self.template.texts([Asked([*masked, *messages[number + 1 :]], asks=asks)])
            if not _equals_but_for_masks(text, found.text):
                break
        return UserError(
            f"the chat template changes the text of message {number + 1} around the special token "
            f"{quoted(tokens[number])}, so it is not clear which characters are the message's: remove the token"
        )

    # The answers

    def _added(self, read: _Text) -> Iterator[Span]:
        """Yield the span that each message of the assistant adds to the text of the messages before it."""
        for number, one in read.before.items():
            before, after = one.checked(), read.after[number].checked().removesuffix(self._tail)
            if not (after.startswith(before) and read.text.startswith(after)):
                raise UserError(
                    f"message {number + 1}: the chat template changes the text of a message when others follow, so its "
                    "answers cannot be found: put {% generation %} and {% endgeneration %} around them in the template"
                )
            yield len(before), len(after)

    def _are_trained(self, messages: Sequence[Message], n_answers: int) -> list[bool]:
        """Return for each answer in the text whether it is scored: False for the weight 0."""
        are_trained = [is_trained(message) for message in messages if message["role"] == ASSISTANT]
        if all(are_trained):
            return [True] * n_answers
        if len(are_trained) != n_answers:
            raise UserError(
                f"a message has the weight 0, and the chat template marks {n_answers} answers of {len(are_trained)} "
                "messages of the assistant: put one block {% generation %} around each, or remove the weights"
            )
        return are_trained

    def _after_end(self, ids: Sequence[int], places: np.ndarray, answer: Span, text: str) -> int | None:
        """Return the index after the token that ends the answer with the span `answer`; None without such a token."""
        begin, end = answer
        controls = [i for i in range(_n_within(places, begin), _n_before(places, end)) if ids[i] in self._control]
        if not controls or text[places[controls[-1], 1] : end].strip():
            return None
        return controls[-1] + 1

    # The ids

    def _ids(self, read: _Text) -> tuple[list[int], np.ndarray]:
        """Return the ids of a rendered text, and the span of each id's characters as a row (first, end).

        A model that answers continues the ids of the text before the answer, and training must read the same ids. So
        the text is cut where an answer begins, if encoding it uncut would change the ids before the answer.
        """
        ids, places = self._encoded(read, [])
        if cuts := list(self._cuts(read, ids, places)):
            ids, places = self._encoded(read, cuts)
        return ids, places

    def _cuts(self, read: _Text, ids: Sequence[int], places: np.ndarray) -> Iterator[int]:
        """Yield each border where the ids of both sides together do not begin with the ids of the first side alone."""
        text, borders = read.text, read.borders
        controls = [tuple(span) for span in places[np.isin(ids, list(self._control))].tolist()]
        edges = sorted({0, len(text)}.union(*controls, *read.written))
        cut = 0
        for number, border in enumerate(borders):
            if any(begin < border < end for begin, end in controls):  # a special token that takes the spaces after it
                cut = border
                yield cut
                continue
            begin = max(cut, edges[bisect_right(edges, border) - 1])
            end = min([edges[bisect_left(edges, border + 1)], *borders[number + 1 : number + 2]])
            before = self._plain_ids(text[begin:border])
            if before and self.tokenizer.encode(text[begin:end])[: len(before)] != before:
                cut = border
                yield cut

    def _encoded(self, read: _Text, cuts: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Return ids and spans of a text; it is encoded in pieces between `cuts` and special tokens of messages."""
        ids: list[int] = []
        places: list[Span] = []
        for begin, end in pairwise(sorted({0, len(read.text), *cuts}.union(*read.written))):
            is_written = any(first <= begin < last for first, last in read.written)
            new, spans = self._piece(read.text[begin:end], () if is_written else self.tokenizer.special_tokens, begin)
            ids += new
            places += [(begin + first, begin + last) for first, last in spans]
        return ids, np.array(places, dtype=np.int64).reshape(-1, 2)

    def _piece(self, text: str, allowed: Sequence[str], place: int) -> tuple[list[int], list[Span]]:
        """Return ids and spans of a piece; only at the beginning of the text, a tokenizer may put a space before it."""
        if place and self._begins_with_space:
            ids, spans = self.tokenizer.encode_with_offsets(f"\n{text}", allow_special=allowed)
            line_break = self._plain_ids("\n")
            if ids[: len(line_break)] == line_break:
                return ids[len(line_break) :], [(first - 1, last - 1) for first, last in spans[len(line_break) :]]
        return self.tokenizer.encode_with_offsets(text, allow_special=allowed)

    @cached_property
    def _begins_with_space(self) -> bool:
        """True if the tokenizer puts a space before a text, so that the same text has other ids inside of another."""
        return self._plain_ids("\na") != [*self._plain_ids("\n"), *self._plain_ids("a")]


def _mask(match: re.Match[str]) -> str:
    return MASK * len(match.group())


def _equals_but_for_masks(text: str, masked: str) -> bool:
    """Return True if two texts are equal in all characters that are not masked in the second one.

    >>> _equals_but_for_masks("a<s>b", f"a{MASK * 3}b"), _equals_but_for_masks("b", f"a{MASK * 3}b")
    (True, False)
    """
    unmasked = re.finditer(f"[^{MASK}]+", masked)
    return len(text) == len(masked) and all(text[m.start() : m.end()] == m.group() for m in unmasked)


def _n_within(places: np.ndarray, end: int) -> int:
    return int((places[:, 1] <= end).sum())


def _n_before(places: np.ndarray, end: int) -> int:
    return int((places[:, 0] < end).sum())


def with_template(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with a chat template: unchanged if it has one, else with ChatML and its special tokens."""
    if tokenizer.chat_template is not None:
        return tokenizer
    return tokenizer.with_special_tokens(CHATML_TOKENS).with_chat_template(CHATML)
