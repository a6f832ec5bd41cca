"""glassformer data report FILE… · glassformer data pairs · glassformer data labels"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from glassformer import recipes
from glassformer.cli.arguments import File, Files, Group
from glassformer.cli.progress import TerminalReporter
from glassformer.cli.tokenizer import load_tokenizer
from glassformer.config.run import NEWEST_READING, LabelData, PairData
from glassformer.data.corpus import Corpus
from glassformer.data.labels import LabelCorpus, class_report
from glassformer.data.pairs import PairCorpus, pair_report
from glassformer.data.report import report as data_report
from glassformer.data.sources import read_pieces
from glassformer.errors import UserError
from glassformer.tokenization.tokenizer import Tokenizer


def report(
    *text_files: Files,
    tokenizer: Path | None = None,
    valid_path: File | None = None,
    valid_fraction: float = 0.1,
    text_field: str = "text",
    json_: bool = False,
) -> int:
    """Sizes, repeats, the split into training and validation text, and what is dropped.

    Args:
        text_files: txt or jsonl files, folders of them, or builtin:NAME.
        tokenizer: A tokenizer.json or a model directory; by default one is learned, of the size that `train` chooses.
        valid_path: Validation text; by default a part of the text is held out.
        valid_fraction: The share that is held out.
        text_field: The field of a jsonl record that holds the text.
        json_: Print one JSON object.
    """
    if not text_files:
        raise UserError("give at least one text file to report on")
    corpus = Corpus(
        text_files,
        valid_paths=[] if valid_path is None else [valid_path],
        valid_fraction=valid_fraction,
        text_field=text_field,
    )
    known = _learned(text_files, text_field) if tokenizer is None else load_tokenizer(tokenizer)
    found = data_report(corpus, known)
    if json_:
        json.dump({**asdict(found), "total": asdict(found.total)}, sys.stdout, ensure_ascii=False)
        print()
    else:
        print(found.table())
    return 0


def pairs(
    *,
    source: File | None = None,
    target: File | None = None,
    path: File | None = None,
    valid_source: File | None = None,
    valid_target: File | None = None,
    valid_path: File | None = None,
    valid_fraction: float = 0.1,
    source_field: str = "source",
    target_field: str = "target",
    json_: bool = False,
) -> int:
    """Numbers and lengths of pairs, the split, repeats, and what is left out.

    Args:
        source: The source side: a text file, one sentence a line.
        target: The target side: line i is the target of line i.
        path: One file with both sides: tsv, csv, jsonl, builtin:NAME or hf:NAME.
        valid_source: The source side of the validation pairs.
        valid_target: The target side of the validation pairs.
        valid_path: One file with both sides of the validation pairs.
        valid_fraction: The share that is held out where no validation pairs are given.
        source_field: The column or field of the source.
        target_field: The column or field of the target.
        json_: Print one JSON object.
    """
    data = PairData(
        source=source,
        target=target,
        path=path,
        valid_source=valid_source,
        valid_target=valid_target,
        valid_path=valid_path,
        valid_fraction=valid_fraction,
        source_field=source_field,
        target_field=target_field,
        reading=NEWEST_READING,
    )
    found = pair_report(PairCorpus(data))
    print(json.dumps(found.to_dict(), ensure_ascii=False) if json_ else found)
    return 0


def labels(
    *,
    path: File | None = None,
    valid_path: File | None = None,
    outputs: Literal["classes", "regression", "tags"] = "classes",
    text_field: str = "text",
    second_field: str | None = None,
    label_field: str = "label",
    valid_fraction: float = 0.1,
    json_: bool = False,
) -> int:
    """How many texts there are, the split, how often each label occurs, and what is left out.

    Args:
        path: tsv, csv, jsonl, conll, builtin:NAME or hf:NAME.
        valid_path: The same for validation.
        outputs: What a label is.
        text_field: The column or field of the text.
        second_field: The column or field of a second text.
        label_field: The column or field of the label.
        valid_fraction: The share that is held out where no validation data is given.
        json_: Print one JSON object.
    """
    data = LabelData(
        path=path,
        valid_path=valid_path,
        outputs=outputs,
        text_field=text_field,
        second_field=second_field,
        label_field=label_field,
        valid_fraction=valid_fraction,
        reading=NEWEST_READING,
    )
    found = class_report(LabelCorpus(data))
    print(json.dumps(found.to_dict(), ensure_ascii=False) if json_ else found)
    return 0


def _learned(text_files: tuple[str, ...], text_field: str) -> Tokenizer:
    """A byte-level tokenizer of the whole text, of the size that suits its length."""
    n_bytes = sum(len(piece.text.encode()) for piece in read_pieces(text_files, text_field=text_field))
    texts = (piece.text for piece in read_pieces(text_files, text_field=text_field))
    with TerminalReporter() as reporter, reporter.phase("learning a tokenizer") as progress:
        return Tokenizer.train(texts, vocab_size=recipes.vocab_size_for(n_bytes), progress=progress)


main = Group(
    "What a text is like, or pairs of texts, or texts with labels, before anything is trained on it.",
    {"report": report, "pairs": pairs, "labels": labels},
)
