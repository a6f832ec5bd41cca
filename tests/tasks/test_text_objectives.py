"""The objective of a run has the settings of the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.common.errors import UserError
from glassformer.config.run import InfillingConfig, MaskedConfig, ObjectiveConfig, SpansConfig
from glassformer.data.batching import Example
from glassformer.objectives.noise import MaskedObjective
from glassformer.objectives.seq2seq import DenoisingObjective
from glassformer.tasks.task import trainable_task
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from runs import made_up_text, text_run_of
from tolerances import within


def objective_of(folder: Path, config: ObjectiveConfig, scheme: Any = "byte") -> tuple[Tokenizer, Any]:
    run = text_run_of(folder, config)
    tokenizer = Tokenizer.train([made_up_text()], vocab_size=290, scheme=scheme)
    task: Any = trainable_task(run)
    tokenizer = task.adapted(run, tokenizer)
    run = replace(run, model=task.open(run).complete(run, Tokenizers(tokenizer)))
    return tokenizer, task.text_objective(run, tokenizer, 32)


def rows(tokenizer: Tokenizer, n: int = 60) -> list[Example]:
    ids = np.array(tokenizer.encode(made_up_text()))
    return [Example(ids[30 * i : 30 * i + 30]) for i in range(n)]


def test_masking_follows_the_settings(tmp_path: Path) -> None:
    config = MaskedConfig(mask_prob=0.4, whole_words=True, label_smoothing=0.1)
    tokenizer, learned = objective_of(tmp_path, config)
    masked = learned.objective
    assert isinstance(masked, MaskedObjective) and learned.row_length == 30 and learned.overlap == 0
    assert (masked.mask_prob, masked.whole_words, masked.label_smoothing) == (0.4, True, 0.1)
    assert (masked.frame.before, masked.frame.after) == ((tokenizer.cls_id,), (tokenizer.sep_id,)) != ((None,), (None,))
    batch = masked.collate(rows(tokenizer), np.random.default_rng(0))
    assert batch.n_targets / (60 * 30) == within(0.4, 0.05)


@pytest.mark.parametrize("permute", [False, True])
def test_infilling_follows_the_settings(tmp_path: Path, permute: bool) -> None:
    config = InfillingConfig(permute_sentences=permute, label_smoothing=0.2)
    tokenizer, learned = objective_of(tmp_path, config)
    assert isinstance(learned.objective, DenoisingObjective) and learned.objective.label_smoothing == 0.2
    text = tokenizer.encode("One cat. Two dogs. Three mice. Four hens.")
    batches = [learned.objective.collate([Example(np.array(text))], np.random.default_rng(seed)) for seed in range(20)]
    sources = [tokenizer.decode(batch.source_ids[0].tolist()) for batch in batches]
    assert all(batch.labels[0, :-1].tolist() == text for batch in batches)
    assert any("One" in s and "Four" in s and s.index("Four") < s.index("One") for s in sources) == permute
    n_left = np.mean([int((batch.source_ids[0] >= 0).sum()) for batch in batches])
    assert 0.7 * len(text) < n_left <= len(text) + 6


def test_spans_follow_the_settings(tmp_path: Path) -> None:
    tokenizer, learned = objective_of(tmp_path, SpansConfig(n_sentinels=7))
    batch = learned.objective.collate(rows(tokenizer, 1), np.random.default_rng(0))
    sentinels = {tokenizer.vocab[f"[SPAN_{i}]"] for i in range(7)}
    written = [i for i in batch.labels[0].tolist() if i not in sentinels and i != tokenizer.eos_id]
    assert len(written) == 4 and sum(i in sentinels for i in batch.labels[0].tolist()) == 1


def test_end_tokens_between_documents_are_not_in_a_target(tmp_path: Path) -> None:
    tokenizer, learned = objective_of(tmp_path, InfillingConfig())
    end = tokenizer.eos_id
    row = np.array([*tokenizer.encode("ab cd"), end, *tokenizer.encode("ef")])
    for seed in range(20):
        batch = learned.objective.collate([Example(row)], np.random.default_rng(seed))
        assert batch.labels[0].tolist().count(end) == 1 == batch.source_ids[0].tolist().count(end)
        assert batch.labels[0, -1] == end


def test_whole_words_need_a_tokenizer_that_marks_word_ends(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="whole_words: tokens of a whitespace tokenizer"):
        objective_of(tmp_path, MaskedConfig(whole_words=True), "whitespace")
