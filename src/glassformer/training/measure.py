"""What a trained model is measured on: the held-out part of its own data, or other data of the same kind."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import LabelData, PairData, Run
from glassformer.data import label_files, pair_files, records
from glassformer.data.batching import Example
from glassformer.data.budget import evaluation_batches, example_rows, pair_rows
from glassformer.data.label_files import Labelled, Tagged
from glassformer.data.labels import LabelCorpus, read_labels, require_known
from glassformer.data.pair_files import Pair
from glassformer.data.pair_tokens import PairFile, encode_pairs
from glassformer.data.pairs import PairCorpus, read_pairs
from glassformer.data.sources import read_documents
from glassformer.data.tokens import encode_text
from glassformer.errors import UserError
from glassformer.objectives.objective import Objective
from glassformer.training import label_task, pair_task, text_task
from glassformer.training.material import Tokenizers
from glassformer.training.text_objectives import start_id_of

Log = Callable[[str], None]
Place = str | Path | None


@dataclass(frozen=True)
class Measure:
    """Batches, and what is to be made of them."""

    batches: Callable[[], Iterable[Sequence[Example]]]
    objective: Objective
    n_targets: int
    """About how many there are, for progress."""
    n_bytes: int | None
    pairs: Sequence[Pair] = ()
    """Of a run on pairs."""
    examples: Sequence[Example] = ()
    """Of a run on labelled texts."""


@dataclass(frozen=True)
class Evaluator:
    """A model as far as data is concerned; `log` is told what is left out, and that a run's own data has changed."""

    run: Run
    config: ModelConfig
    tokenizers: Tokenizers
    labels: tuple[str, ...]
    data_digest: str | None
    log: Log

    def measure(self, path: Place = None, source: Place = None, target: Place = None) -> Measure:
        """The validation side of the run's own data, or the whole of other data."""
        for name, given in (("path", path), ("source", source), ("target", target)):
            if given is not None:
                files.as_path(given, name)
        if isinstance(self.run.data, PairData):
            return self._of_pairs(path, source, target)
        if source is not None or target is not None:
            kind = "texts with labels" if isinstance(self.run.data, LabelData) else "a text"
            raise UserError(f"{self.run.name} has no source and is evaluated on {kind}: give it as --data.path FILE")
        return self._of_labels(path) if isinstance(self.run.data, LabelData) else self._of_text(path)

    def pairs(self, path: Place, source: Place, target: Place) -> tuple[list[Pair], PairFile]:
        """Pairs that fit the model. Of other data a pair that is too long is refused: scores would be others."""
        data = pair_task.pairs_of(self.run)
        if path is None and source is None and target is None:
            corpus = PairCorpus(data)
            self._say_changed(corpus.digest, corpus.name)
            pairs, too_long = corpus.split[1], self.log
        else:
            names = {"path": path, "source": source, "target": target}
            asked: dict[str, Any] = {name: None if value is None else str(value) for name, value in names.items()}
            dropped = pair_files.DroppedPairs()
            data = replace(data, **asked, valid_path=None, valid_source=None, valid_target=None)
            pairs, too_long = read_pairs(data, dropped), _refuse
            self._say_dropped(dropped)
        encoded = encode_pairs(pairs, self.tokenizers.target, self.tokenizers.source, "pairs")
        fitting = pair_task.within(encoded, self.config, self.tokenizers, too_long)
        return [pairs[row] for row in fitting.rows], fitting

    def labelled(self, path: Place) -> Sequence[Labelled | Tagged]:
        """Labelled texts: the run's own validation side, or all of a file."""
        data = label_task.labels_of(self.run)
        if path is None:
            corpus = LabelCorpus(data)
            self._say_changed(corpus.digest, corpus.name)
            return self._known(corpus.split[1])
        dropped = label_files.DroppedLabels()
        found = read_labels(data, str(path), dropped)
        self._say_dropped(dropped)
        return self._known(found)

    def _known(self, records: Sequence[Labelled | Tagged]) -> Sequence[Labelled | Tagged]:
        if self.labels:
            require_known(records, self.labels)
        return records

    def _of_pairs(self, path: Place, source: Place, target: Place) -> Measure:
        pairs, encoded = self.pairs(path, source, target)
        budget = pair_task.pairs_of(self.run).batch_tokens
        objective = pair_task.objective_of(self.config, self.tokenizers, self.run.objective.label_smoothing)
        n_added = self.tokenizers.target.frames.target.n_added
        n_targets = int(encoded.target_lengths.sum()) + n_added * encoded.n_pairs
        return Measure(lambda: evaluation_batches(pair_rows(encoded), budget), objective, n_targets, None, pairs)

    def _of_labels(self, path: Place) -> Measure:
        data = label_task.labels_of(self.run)
        # Words that are cut off have no tag: of other data the scores would be others.
        log = _refuse if data.outputs == "tags" and path is not None else self.log
        examples = label_task.labelled_examples(
            self.labelled(path), self.tokenizers.target, self.config.max_len, self.labels, "texts", log
        )
        rows = example_rows(examples, "texts")
        n = sum(int((e.labels != -100).sum()) if e.labels is not None else 1 for e in examples)
        objective = label_task.objective_of(self.run)
        return Measure(lambda: evaluation_batches(rows, data.batch_tokens), objective, n, None, examples=examples)

    def _of_text(self, path: Place) -> Measure:
        data = text_task.text_of(self.run)
        # The validation text that the run names is read as the trainer read it, end tokens and all.
        is_own = path is None or str(Path(path).absolute()) == data.valid_path
        if path is not None and not is_own:
            documents = read_documents([path], text_field=data.text_field)
            tokens = encode_text(self.tokenizers.target, documents, start_id=start_id_of(self.run), name=str(path))
        elif data.path is None:
            raise UserError("the model does not say what it was trained on: give a text as --data.path FILE")
        else:
            corpus = text_task.corpus_of(self.run)
            self._say_changed(corpus.digest, corpus.name)
            tokens = text_task.prepared_tokens(self.run, corpus, self.tokenizers.target).valid
        learned, batches, n_bytes = text_task.evaluation_of(self.run, self.tokenizers.target, tokens)
        return Measure(batches, learned, tokens.n_tokens, n_bytes)

    def _say_changed(self, digest: str, name: str) -> None:
        if self.data_digest is not None and self.data_digest != digest:
            self.log(f"{name} is no longer what {self.run.name} was trained on: the held-out part may not be the same")

    def _say_dropped(self, dropped: records.Dropped) -> None:
        for sentence in dropped.sentences():
            self.log(sentence)


def _refuse(sentence: str) -> None:
    raise UserError(f"{sentence.removesuffix(' and are left out')}: shorten them, or leave them out")
