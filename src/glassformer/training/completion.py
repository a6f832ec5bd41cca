"""What the configuration of a run gets from where it starts, from its data and from its tokenizers."""

import json
from dataclasses import replace
from pathlib import Path

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import NEWEST_READING, Run
from glassformer.config.schema import from_union, to_dict
from glassformer.distributed.ranks import Ranks
from glassformer.store.model_directory import StoredModel
from glassformer.tasks.task import RunData
from glassformer.tokenization.tokenizers import Tokenizers
from glassformer.training.data_paths import with_whole_paths
from glassformer.training.init_from import with_model_of


def as_new(run: Run, start: StoredModel | None) -> Run:
    """A run before its first step: with the model that it starts from, and by the present rules."""
    if start is not None:
        whole = Path(str(run.init.path)).absolute()
        run = replace(with_model_of(run, start), init=replace(run.init, path=str(whole)))
    return with_present_rules(run)


def with_present_rules(run: Run) -> Run:
    """Record that a new run follows the present rules: a `run.toml` of an older version lacks the key."""
    return replace(run, data=replace(run.data, reading=NEWEST_READING))


def completed(run: Run, tokenizers: Tokenizers, data: RunData, ranks: Ranks) -> Run:
    """The run with all that its data and tokenizers decide; only the first process reads texts for it."""
    model = ranks.text_of_first(lambda: json.dumps(to_dict(data.complete(run, tokenizers))))
    return replace(run, model=from_union(ModelConfig, json.loads(model)), data=with_whole_paths(run.data))
