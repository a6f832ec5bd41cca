"""glassformer data report FILE… · glassformer data pairs · glassformer data labels"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from glassformer.cli.arguments import Files, Group, Json
from glassformer.cli.progress import print_json, print_report, reporting
from glassformer.cli.tokenizer import load_tokenizer
from glassformer.config.run import LabelData, PairData, TextData
from glassformer.data.first_look import look_at
from glassformer.data.labels import LabelCorpus, class_report
from glassformer.data.pairs import PairCorpus, pair_report
from glassformer.data.texts import read_pieces
from glassformer.errors import UserError
from glassformer.formatting import output_width, show
from glassformer.recipes.own_data import vocab_size_for

SIDES = ("source", "target", "path", "valid_source", "valid_target", "valid_path", "valid_fraction")
COLUMNS = ("path", "valid_path", "valid_fraction", "text_field", "second_field", "label_field")


def report(
    *text_files: Files,
    tokenizer: Path | None = None,
    json_: Json = False,
    data: Annotated[TextData, "valid_path", "valid_fraction", "text_field"],
) -> int:
    """Report sizes, duplicates, the split into training and validation text, and dropped text.

    Args:
        tokenizer: A tokenizer.json or a model directory; by default one is trained, with the size that `train` chooses.

    Examples:
        glassformer data report mybook.txt
    """
    if not text_files:
        raise UserError("give at least one text file to report on")
    for path in text_files:
        look_at(replace(data, path=path))
    known = None if tokenizer is None else load_tokenizer(tokenizer)
    from glassformer.data.corpus import Corpus  # imports numpy
    from glassformer.data.report import report as data_report
    from glassformer.tokenization.tokenizer import Tokenizer

    corpus = Corpus(
        text_files,
        valid_paths=[] if data.valid_path is None else [data.valid_path],
        valid_fraction=data.valid_fraction,
        text_field=data.text_field,
    )
    if known is None:  # byte-level, trained on all of the text, with the default size for its length
        n_bytes = sum(len(piece.text.encode()) for piece in read_pieces(text_files, text_field=data.text_field))
        texts = (piece.text for piece in read_pieces(text_files, text_field=data.text_field))
        with reporting() as reporter, reporter.phase("training a tokenizer") as progress:
            known = Tokenizer.train(texts, vocab_size=vocab_size_for(n_bytes), progress=progress)
    text_report = data_report(corpus, known)
    if json_:
        print_json({**asdict(text_report), "total": asdict(text_report.total)})
    else:
        show(text_report.table(output_width()))
    return 0


def pairs(*, json_: Json = False, data: Annotated[PairData, *SIDES, "source_field", "target_field"]) -> int:
    """Report the number and lengths of pairs, the split, duplicates, and dropped pairs.

    Examples:
        glassformer data pairs --source train.en --target train.de
    """
    print_report(pair_report(PairCorpus(data)), as_json=json_)
    return 0


def labels(*, json_: Json = False, data: Annotated[LabelData, *COLUMNS, "outputs"]) -> int:
    """Report the number of labelled texts, the split, the frequency of each label, and dropped texts.

    Examples:
        glassformer data labels --path train.tsv
    """
    print_report(class_report(LabelCorpus(data)), as_json=json_)
    return 0


main = Group(
    "Report on texts, pairs of texts or labelled texts before training.",
    (report, pairs, labels),
)
