"""The table of the kinds of data, and a first look at data before torch is imported.

A new kind of data needs:

- in `config/run.py`, its settings, with those that name its fields (`Columns`), as a member of `DataConfig`;
- here, a file with its records and their corpus, which imports no numpy, and a row of `KINDS`. Rows of tokens, and
  reports on tokens, have a separate file, such as `rows.py`;
- in `tasks`, a task that learns from it, with the row of its objective in `BUILT_IN` of `requirements.py`, and a case
  in `require_data` of that file. The settings of the objective are a member of `ObjectiveConfig` in `config/run.py`;
- in `recognition.py` and `own_data.py`, its recognition and its sizes, needed only if `train FILE` is to recognise it.
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
"""Function that shows the progress of a part of the work. Its argument is the title of the part."""


@dataclass(frozen=True)
class DataReport:
    """Statistics of data before training: values for programs, and lines for people."""

    statistics: dict[str, Any]
    lines: Sequence[tuple[str, str]]
    """(title, text) of each line; with the title "", the text is the whole line."""

    def to_dict(self) -> dict[str, Any]:
        return self.statistics

    def __str__(self) -> str:
        width = max([12, *(len(title) + 2 for title, _ in self.lines)])
        return "\n".join(f"{title:{width}}{text}" if title else text for title, text in self.lines)


def notes(news: Iterable[str]) -> list[tuple[str, str]]:
    """Return notes as lines of a report."""
    return [("note", line) for line in news]


@dataclass(frozen=True)
class Kind:
    """The functions of one kind of data, each as "MODULE:NAME" of a module in `data`. A call imports the module."""

    corpus: str
    """Returns the data that settings describe: a `RecordCorpus`, or `Texts`. Raises `UserError` for wrong settings.

    The method `look` of the data reads the beginning of each file, and its method `read` yields all of `data.path`.
    """
    report: str = ""
    """Returns the `DataReport` on the data of a run. A report on tokens trains a tokenizer if it gets no tokenizer."""
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
    """Return the data that the settings `data` name; files are read on first use."""
    return _found(KINDS[data.kind].corpus)(data)


def report_on(run: Run, tokenizer: "Tokenizer | None", phase: Phase) -> DataReport:
    """Return the report on the data of a run; its kind must have a report. Files that are not text are left out."""
    data = replace(run.data, on_bad="skip") if isinstance(run.data, TextData) else run.data
    corpus = corpus_of(data)
    corpus.look()  # before numpy is imported
    return _found(KINDS[data.kind].report)(corpus, run, tokenizer, phase)


def look_at(data: DataConfig, context: int = 0) -> None:
    """Read the beginning of all files of `data`; raise `UserError` for a file from which nothing can be learned.

    A text that is so short that all of it is read must have `context` + 1 tokens, one window. Data on the hub is not
    read.
    """
    corpus_of(data).look(context)


def require_readable(data: DataConfig) -> None:
    """Read all of `data.path`; raise `UserError` for a record that cannot be read."""
    deque(corpus_of(data).read(), maxlen=0)
