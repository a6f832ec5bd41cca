"""glassformer data report FILE… · data pairs · data labels · data conversations"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from glassformer.apps.cli.arguments import Files, Group, Json
from glassformer.apps.cli.progress import print_json, print_report, reporting
from glassformer.apps.cli.tokenizer import load_tokenizer
from glassformer.common.errors import UserError
from glassformer.common.formatting import output_width, show
from glassformer.config.run import ConversationData, LabelData, PairData, TextData
from glassformer.data.first_look import look_at
from glassformer.data.labels import LabelCorpus, class_report
from glassformer.data.own_data import run_for, vocab_size_for
from glassformer.data.pairs import PairCorpus, pair_report
from glassformer.data.texts import read_pieces
from glassformer.store.model_directory import CONFIG, read_config

READING = ("format", "encoding")
SIDES = ("source", "target", "path", "valid_source", "valid_target", "valid_path", "valid_fraction", *READING)
MESSAGES = ("messages_field", "prompt_field", "completion_field")
COLUMNS = ("path", "valid_path", "valid_fraction", "text_field", "second_field", "label_field", *READING)


def report(
    *text_files: Files,
    tokenizer: Path | None = None,
    json_: Json = False,
    data: Annotated[TextData, "valid_path", "valid_fraction", "text_field", *READING, "front_matter"],
) -> int:
    """Report sizes, duplicates, the split into training and validation text, and dropped text.

    Files that are not text are left out, and each is named with the reason.

    Args:
        tokenizer: A tokenizer.json or a model directory; by default one is trained, with the size that `train` chooses.

    Examples:
        glassformer data report mybook.txt
    """
    if not text_files:
        raise UserError("give at least one text file to report on")
    data = replace(data, on_bad="skip")
    for path in text_files:
        look_at(replace(data, path=path))
    known = None if tokenizer is None else load_tokenizer(tokenizer)
    from glassformer.data.corpus import Corpus  # imports numpy
    from glassformer.data.report import report as data_report
    from glassformer.tokenization.tokenizer import Tokenizer

    corpus = Corpus(
        text_files,
        valid_paths=[*filter(None, [data.valid_path])],
        valid_fraction=data.valid_fraction,
        data=data,
    )
    if known is None:  # byte-level, trained on all of the text, with the default size for its length
        n_bytes = sum(len(piece.text.encode()) for piece in read_pieces(text_files, data))
        texts = (piece.text for piece in read_pieces(text_files, data))
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


def conversations(
    *,
    tokenizer: Path | None = None,
    context: int | None = None,
    json_: Json = False,
    data: Annotated[ConversationData, "path", "valid_path", "valid_fraction", *MESSAGES, "scored", *READING],
) -> int:
    """Report roles, lengths in tokens, scored tokens, duplicates, and conversations that are cut or left out.

    Args:
        tokenizer: A tokenizer.json or a model directory; by default one is trained, with the size that `train` chooses.
        context: Tokens that the model reads; by default those of the model directory, or what `train` chooses.

    Examples:
        glassformer data conversations --path talks.jsonl
        glassformer data conversations --path talks.jsonl --tokenizer runs/smollm2
    """
    if data.path is None:
        raise UserError("no conversations are given: set --path FILE")
    if context is not None and context < 1:
        raise UserError(f"--context: expected at least 1, got {context}")
    names = {name: getattr(data, name) for name in MESSAGES}
    given = {name: one for name, one in names.items() if one != getattr(ConversationData, name)}
    reading = {"format": data.format, "encoding": " ".join(data.encoding)}
    run, _ = run_for([data.path], "conversations", given | reading)
    data = replace(data, **{name: getattr(run.data, name) for name in MESSAGES})
    run = replace(run, data=data)
    known = None if tokenizer is None else load_tokenizer(tokenizer)
    from glassformer.data.conversation_report import conversation_report  # imports numpy
    from glassformer.data.conversations import ConversationCorpus
    from glassformer.tokenization.conversations import ConversationEncoder, with_template

    if tokenizer is not None and (tokenizer / CONFIG).exists():
        run = replace(run, model=read_config(tokenizer)[0])
    corpus = ConversationCorpus(data)
    if known is None:
        from glassformer.tasks.registry import trainable_task

        with reporting() as reporter:
            known = trainable_task(run).open(run).tokenizers(run, reporter).target
    encoder = ConversationEncoder(with_template(known), run.name)
    print_report(conversation_report(corpus, encoder, context or run.model.max_len), as_json=json_)
    return 0


main = Group(
    "Report on texts, pairs of texts, labelled texts or conversations before training.",
    (report, pairs, labels, conversations),
)
