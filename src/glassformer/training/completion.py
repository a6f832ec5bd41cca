"""What a run gets from where it starts and from its data: its tokenizers, and what its configuration leaves open."""

import json
from dataclasses import replace
from pathlib import Path

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import NEWEST_READING, Run
from glassformer.config.schema import from_union, to_dict
from glassformer.distributed.ranks import Ranks
from glassformer.errors import UserError
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import StoredModel, read_tokenizers
from glassformer.tasks.task import RunData
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from glassformer.training.host import Host
from glassformer.training.init_from import tokenizers_of, with_model_of
from glassformer.training.run_folder import with_whole_paths
from glassformer.training.trainer_state import read_progress


def as_new(run: Run, start: StoredModel | None) -> Run:
    """A run before its first step: with the model that it starts from, and by the present rules."""
    if start is not None:
        whole = Path(str(run.init.path)).absolute()
        run = replace(with_model_of(run, start), init=replace(run.init, path=str(whole)))
    return with_present_rules(run)


def with_present_rules(run: Run) -> Run:
    """Record that a new run follows the present rules: a `run.toml` of an older version lacks the key."""
    return replace(run, data=replace(run.data, reading=NEWEST_READING))


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


def completed(run: Run, tokenizers: Tokenizers, data: RunData, ranks: Ranks) -> Run:
    """The run with all that its data and tokenizers decide; only the first process reads texts for it."""
    model = ranks.text_of_first(lambda: json.dumps(to_dict(data.complete(run, tokenizers))))
    return replace(run, model=from_union(ModelConfig, json.loads(model)), data=with_whole_paths(run.data))
