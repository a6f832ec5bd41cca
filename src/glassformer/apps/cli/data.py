"""glassformer data RECIPE|FILE.toml|FILE…"""

from dataclasses import asdict, replace
from pathlib import Path

from glassformer.apps.cli.arguments import Json, with_flags
from glassformer.apps.cli.progress import print_json, print_report, reporting
from glassformer.apps.cli.tokenizer import load_tokenizer
from glassformer.apps.cli.train import Source
from glassformer.common.errors import UserError
from glassformer.common.formatting import output_width, show
from glassformer.config.run import ConversationData, LabelData, PairData, Run, TextData
from glassformer.data import own_data
from glassformer.data.first_look import look_at
from glassformer.data.labels import LabelCorpus, class_report
from glassformer.data.pairs import PairCorpus, pair_report
from glassformer.data.texts import read_pieces
from glassformer.store.model_directory import CONFIG, read_config


def main(
    *sources: Source,
    kind: own_data.Kind | None = None,
    tokenizer: Path | None = None,
    json_: Json = False,
    **keys: str,
) -> int:
    """Report on data before training: sizes, the split into training and validation data, repeats, what is dropped.

    Texts, pairs, labelled texts and conversations are read as `glassformer train` reads them, with the same keys. Of
    several files of text, those that are not text are left out, and each is named with the reason.

    Args:
        sources: The name of a recipe, a TOML file, or own data.
        kind: The kind of own data, if it is not clear.
        tokenizer: For texts and conversations, a tokenizer.json or a model directory; by default one is trained as
            `train` does. The context of a model directory is used, too.

    Examples:
        glassformer data mybook.txt
        glassformer data train.en train.de
        glassformer data talks.jsonl --tokenizer runs/smollm2
    """
    run, evidence = own_data.run_of(*sources, kind=kind, changes=keys | {"data.on_bad": "skip"})
    if tokenizer is not None and (tokenizer / CONFIG).exists():
        run = replace(run, model=read_config(tokenizer)[0])
    run = with_flags(run, keys)
    if not json_:
        own_data.note(evidence)
    if isinstance(run.data, TextData):
        _report_on_texts(run, replace(run.data, on_bad="skip"), tokenizer, json_)
    elif isinstance(run.data, ConversationData):
        _report_on_conversations(run, run.data, tokenizer, json_)
    elif tokenizer is not None:
        raise UserError(f"--tokenizer is for texts and conversations, and this data has {run.data.kind}: remove it")
    elif isinstance(run.data, PairData):
        print_report(pair_report(PairCorpus(run.data)), as_json=json_)
    elif isinstance(run.data, LabelData):
        print_report(class_report(LabelCorpus(run.data)), as_json=json_)
    else:
        raise UserError(f"no report on {run.data.kind}: it is for texts, pairs, labelled texts and conversations")
    return 0


def _report_on_texts(run: Run, data: TextData, tokenizer: Path | None, as_json: bool) -> None:
    if data.path is None:
        raise UserError("no text is given: set data.path, or give a file")
    look_at(data)
    known = None if tokenizer is None else load_tokenizer(tokenizer)
    from glassformer.data.corpus import Corpus  # imports numpy
    from glassformer.data.report import report
    from glassformer.tokenization.tokenizer import Tokenizer

    corpus = Corpus(
        [data.path], valid_paths=[*filter(None, [data.valid_path])], valid_fraction=data.valid_fraction, data=data
    )
    if known is None:  # on all of the text, also one that is too short to split
        texts = (piece.text for piece in read_pieces([data.path], data))
        with reporting() as reporter, reporter.phase("training a tokenizer") as progress:
            size, scheme = run.tokenizer.vocab_size, run.tokenizer.scheme
            known = Tokenizer.train(texts, vocab_size=size, scheme=scheme, progress=progress)
    found = report(corpus, known)
    if as_json:
        print_json({**asdict(found), "total": asdict(found.total)})
    else:
        show(found.table(output_width()))


def _report_on_conversations(run: Run, data: ConversationData, tokenizer: Path | None, as_json: bool) -> None:
    known = None if tokenizer is None else load_tokenizer(tokenizer)
    from glassformer.data.conversation_report import conversation_report  # imports numpy
    from glassformer.data.conversations import ConversationCorpus
    from glassformer.tokenization.conversations import ConversationEncoder, with_template

    corpus = ConversationCorpus(data)
    if known is None:
        from glassformer.tasks.registry import trainable_task

        with reporting() as reporter:
            known = trainable_task(run).open(run).tokenizers(run, reporter).target
    encoder = ConversationEncoder(with_template(known), run.name)
    print_report(conversation_report(corpus, encoder, run.model.max_len), as_json=as_json)
