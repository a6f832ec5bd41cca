"""The table of the kinds of data, and a first look at data before torch is imported.

A new kind of records needs its settings in `config/run.py`, with the settings that name its fields (`Columns`), a file
here with its records and their corpus, and a row of `KINDS`. Its task defines what is learned. A file with a corpus
needs no numpy. Rows of tokens, and reports on tokens, have a file beside it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glassformer.common.errors import Progress
from glassformer.config.run import DataConfig, Run, TextData

if TYPE_CHECKING:
    from glassformer.tokenization.tokenizer import Tokenizer

Phase = Callable[[str], AbstractContextManager[Progress]]
"""Shows the progress of a part of the work, by its title."""


@dataclass(frozen=True)
class DataReport:
    """Statistics of data before training: values for programs, and lines for people."""

    statistics: dict[str, Any]
    lines: Sequence[tuple[str, str]]
    """A title and a text; without a title, the text is a whole line."""

    def to_dict(self) -> dict[str, Any]:
        return self.statistics

    def __str__(self) -> str:
        width = max([12, *(len(title) + 2 for title, _ in self.lines)])
        return "\n".join(f"{title:{width}}{text}" if title else text for title, text in self.lines)


def notes(news: Iterable[str]) -> list[tuple[str, str]]:
    """Return the lines of a report for notes."""
    return [("note", line) for line in news]


@dataclass(frozen=True)
class Kind:
    """One kind of data: functions, as the module in `data` that has them and their name. A call imports the module."""

    corpus: str
    """Returns the data of some settings, a `RecordCorpus` for records; raises `UserError` if they do not fit.

    Its method `look` reads the beginning of each file, and `read` yields all of `data.path`.
    """
    report: str = ""
    """Returns the `DataReport` on a corpus, for its run; a report on tokens learns a tokenizer if none is given."""
    reports_tokens: bool = False


KINDS = {
    "text": Kind("texts:Texts", "report:report_of", reports_tokens=True),
    "pairs": Kind("pairs:PairCorpus", "pairs:report_of"),
    "labels": Kind("labels:LabelCorpus", "labels:report_of"),
    "conversations": Kind("conversations:ConversationCorpus", "rows:report_of", reports_tokens=True),
    "preferences": Kind("conversations:PreferenceCorpus"),
    "prompts": Kind("conversations:PromptCorpus"),
}


def _found(home: str) -> Callable[..., Any]:
    module, name = home.split(":")
    return getattr(import_module(f"glassformer.data.{module}"), name)


def corpus_of(data: DataConfig) -> Any:
    """Return the data of some settings, split into training and validation data; files are read on first use."""
    return _found(KINDS[data.kind].corpus)(data)


def report_on(run: Run, tokenizer: "Tokenizer | None", phase: Phase) -> DataReport:
    """Return the report on the data of a run, whose kind has one; files that are not text are left out."""
    data = replace(run.data, on_bad="skip") if isinstance(run.data, TextData) else run.data
    corpus = corpus_of(data)
    corpus.look()  # before numpy is imported
    return _found(KINDS[data.kind].report)(corpus, run, tokenizer, phase)


def look_at(data: DataConfig, context: int = 0) -> None:
    """Read the beginning of all files of `data`; raise `UserError` for a file from which nothing can be learned.

    A text must have at least one window of `context` + 1 tokens, if all of it is read here. Data on the hub is not
    read.
    """
    corpus_of(data).look(context)


def require_readable(data: DataConfig) -> None:
    """Read all of `data.path`; raise `UserError` for a record that cannot be read."""
    deque(corpus_of(data).read(), maxlen=0)
