"""Sets of texts: texts from a run's validation data, texts as lines, and the inputs that a model reads for a text."""

from collections.abc import Mapping
from typing import Any

from glassformer.common.chat_messages import text_of
from glassformer.common.errors import UserError
from glassformer.data.batching import Example
from glassformer.inference.text import end_ids_of
from glassformer.inspection.capture import Trace, encoded
from glassformer.tasks.batches import EvaluationData, Places
from glassformer.tasks.task import TrainableTask
from glassformer.tasks.trained_model import TrainedModel

Given = str | Mapping[str, str]
"""A text, or a mapping with the keys `source` and `target`. For an encoder-decoder, a text is a source."""
N_TOKENS = 14
"""Default number of tokens of a text from the validation data."""
TEXTS = {
    "generate": [
        "When Mary and John went to the store, John gave a drink to",
        "The capital of France is Paris. The capital of Italy is",
        "one two three four one two three",
    ],
    "fill": ["The capital of France is [MASK].", "She plays the [MASK] in an orchestra."],
    "others": ["A dog runs through the grass.", "The film was long, but I liked it."],
}
"""Inputs of `usual_texts`. The first one is the question of Wang (2022) about indirect objects."""


def read(model: TrainedModel, given: Given) -> Trace:
    """Return a trace with the inputs and tokens of a text, but no tensors; the end of a too long text is left out."""
    return encoded(model, **sides_of(model, given), cuts=True)


def sides_of(model: TrainedModel, given: Given) -> dict[str, str]:
    """Return the sides of a text by name. A target may follow its source after a tab."""
    if not isinstance(given, str):
        return dict(given)
    if not model.is_seq2seq:
        return {"text": given}
    source, tab, target = given.partition("\t")
    return {"source": source, "target": target} if tab else {"source": source}


def line_of(sides: Mapping[str, str]) -> str:
    """Return the sides of a text as one line, which `sides_of` reads; line ends become spaces.

    >>> line_of({"source": "a b", "target": "c"})
    'a b\\tc'
    """
    return "\t".join(" ".join(text.split()) for text in sides.values())


def validation_texts(model: TrainedModel, n: int, n_tokens: int = N_TOKENS) -> list[dict[str, str]]:
    """Return n inputs from the validation data of the run: beginnings of rows, pairs, or texts with a mask.

    The list is empty if the model was not trained here or the data is gone, and shorter if the data has fewer rows.
    """
    found: list[dict[str, str]] = []
    try:
        for rows in _evaluation(model).batches():
            for row in rows:
                sides = _sides_of_row(model, row, n_tokens)
                if all(sides.values()):
                    found.append(sides)
                if len(found) == n:
                    return found
    except (UserError, OSError):
        return found
    return found


def validation_messages(model: TrainedModel, n: int) -> list[dict[str, Any]]:
    """Return n inputs from the validation conversations of a run: the messages before the first answer.

    The list is empty for a run on other data, and if the data is gone.
    """
    if model.tokenizer.chat_template is None:
        return []
    try:
        questions = [getattr(record, "question", ()) for record in _evaluation(model).records[:n]]
    except (UserError, OSError):
        return []
    said = [[{"role": one["role"], "content": text_of(one)} for one in messages] for messages in questions]
    return [{"messages": messages} for messages in said if messages]


def _evaluation(model: TrainedModel) -> EvaluationData[Any]:
    """Return the validation data of a run; raise `UserError` if the model was not trained here or the data is gone."""
    if not isinstance(model.task, TrainableTask):
        raise UserError(f"{model.name} was not trained here, so it has no validation data")
    return model.task.evaluation(model, Places(), lambda text: None)


def usual_texts(model: TrainedModel) -> list[dict[str, str]]:
    """Return inputs for a model without validation data, such as an imported one: English, if it can read all of it."""
    texts = TEXTS["fill" if model.task.verb == "fill" else "generate" if model.is_causal_lm else "others"]
    side, tokenizer = ("source", model.source_tokenizer) if model.is_seq2seq else ("text", model.tokenizer)
    found = {text: tokenizer.encode(text.replace("[MASK]", "a")) for text in texts}
    most = min(model.config.max_len, model.config.encoder_max_len) - 2  # without start and end tokens
    return [{side: text} for text, ids in found.items() if len(ids) <= most and tokenizer.unknown_id not in ids]


def _sides_of_row(model: TrainedModel, row: Example, n_tokens: int) -> dict[str, str]:
    text = model.tokenizer.decode(row.token_ids[:n_tokens].tolist()).strip()
    if row.source_ids is not None:
        return {"source": model.source_tokenizer.decode(row.source_ids.tolist()).strip(), "target": text}
    if row.label is None:
        text = without_first_word(text)  # a window may begin inside a word
    if model.task.verb != "fill":
        return {"text": text}
    words = text.split(" ")
    words[len(words) // 2] = "[MASK]"
    side = "source" if model.is_seq2seq else "text"
    return {side: " ".join(words)}


def without_first_word(text: str) -> str:
    """Return the text after its first space; a text without a space is returned whole.

    >>> without_first_word("tion of an object"), without_first_word("gadb|gadb")
    ('of an object', 'gadb|gadb')
    """
    return text.partition(" ")[2] or text


def end_ids(model: TrainedModel) -> list[int]:
    """Return the ids that end a written text."""
    if not (model.is_seq2seq or model.is_causal_lm):
        return []
    return sorted(end_ids_of(model.tokenizer, model.config, model.generation))
