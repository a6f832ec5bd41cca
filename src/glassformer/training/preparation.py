"""The tokenizers of a run and the digest of its data: found by the first process, and known to all."""

import json
from pathlib import Path

from glassformer.config.run import Run
from glassformer.errors import UserError
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import StoredModel, read_tokenizers
from glassformer.tasks.task import RunData
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.tokenizers import Tokenizers
from glassformer.training.host import Host
from glassformer.training.init_from import tokenizers_of
from glassformer.training.trainer_state_file import read_progress


def learned_tokenizers(run: Run, start: StoredModel | None, data: RunData, host: Host) -> Tokenizers:
    """Read and hash the data and learn the tokenizers in the first process; the others take over what it found."""
    corpus, learned = data.corpus, list[Tokenizers]()

    def work() -> str:
        with host.reporter.phase("reading the data") as _:
            news = corpus.news()
        for line in news:
            host.reporter.log(line)
        tokenizers = data.tokenizers(run, host.reporter) if start is None else tokenizers_of(run, start)
        learned.append(tokenizers)
        source = tokenizers.separate_source
        return json.dumps([corpus.digest, tokenizers.target.to_json(), None if source is None else source.to_json()])

    text = host.ranks.text_of_first(work)
    if learned:
        return learned[0]
    digest, target, source = json.loads(text)
    corpus.digest = digest
    return Tokenizers(Tokenizer.from_json(target), None if source is None else Tokenizer.from_json(source))


def stored_tokenizers(checkpoint: Path, data: RunData, host: Host) -> Tokenizers:
    """The tokenizers that a checkpoint holds; `UserError` where the data is not what it was trained on."""
    corpus = data.corpus
    corpus.digest = host.ranks.text_of_first(lambda: corpus.digest)
    if read_progress(checkpoint).data_digest != corpus.digest:
        raise UserError(
            f"the text of {corpus.name} is not the one that {checkpoint.parent.parent} was trained on: put the old "
            "text back, or start a new run"
        )
    return Tokenizers(*read_tokenizers(checkpoint, Manifest.read(checkpoint)))
