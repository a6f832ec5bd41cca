"""Sequence-to-sequence: generate a target from a source, for example a translation or a pronunciation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glassformer.common.errors import Log, Progress, UserError, warn
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import BeamConfig, PairData, Run, Seq2SeqConfig
from glassformer.config.transformer import TokenHead
from glassformer.data.batching import Sampler, TokenBudget, evaluation_batches
from glassformer.data.pair_rows import PairFile, PairSplits, encode_pairs, pair_rows, prepare_pairs
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.tokens import BpeDropout, TokenCache, learn_tokenizer
from glassformer.evaluation import metrics
from glassformer.evaluation.loss import Division
from glassformer.evaluation.pairs import PairScores
from glassformer.inference.decodable import Ensemble
from glassformer.inference.fill import WritingFiller
from glassformer.inference.translator import Translator
from glassformer.models.build import Network
from glassformer.objectives.seq2seq import objective_of
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tasks.requirements import BUILT_IN, data_of
from glassformer.tasks.task import ModelParts, RunData, TrainableTask
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from glassformer.tokenization.vocabulary import sentinel_ids

PAIRS_OF_TRAIN_EVALUATED = 1000
GREEDY = BeamConfig(beam=1, max_ratio=3.0)
"""Greedy search for validation sources during training."""


class TranslationTask(TrainableTask):
    """Sequence-to-sequence: an encoder-decoder generates targets from sources."""

    settings = Seq2SeqConfig
    facts = BUILT_IN["seq2seq"]
    unit = "token"

    def metrics(self, run: Run) -> tuple[str, ...]:
        return metrics.names(data_of(run, PairData).outputs)

    # Training

    def open(self, run: Run) -> "PairRunData":
        return PairRunData(run)

    # Use

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Pair]:
        """Return the pairs that fit the model; refuse other data that has a pair that does not fit.

        Without that pair, scores would not be comparable.
        """
        data, tokenizers = data_of(model.run, PairData), model.tokenizers
        if places == Places():
            corpus = PairCorpus(data)
            preparation.say_changed(model, corpus.digest, corpus.name, log)
            pairs, too_long = corpus.split[1], log
        else:
            corpus = PairCorpus(replace(data, **vars(places), valid_path=None, valid_source=None, valid_target=None))
            pairs, too_long = corpus.whole(), preparation.refuse
            for sentence in corpus.dropped.sentences():
                log(sentence)
        config = self.vote(model).config
        encoded = encode_pairs(pairs, tokenizers, "pairs")
        for note in encoded.unknown(tokenizers):
            log(note)
        encoded = within(encoded, config, tokenizers, too_long)
        return EvaluationData(
            lambda: evaluation_batches(pair_rows(encoded), data.batch_tokens),
            objective_of(config, tokenizers, model.run.objective.label_smoothing),
            int(encoded.target_lengths.sum()) + tokenizers.target.frames.target.n_added * encoded.n_pairs,
            records=[pairs[row] for row in encoded.rows],
        )

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return BLEU and chrF of sentences, or error rates of pronunciations, in percent."""
        pairs, translator = list(self.evaluation(model, places, log).records), self.translator(model)
        return dict(self.pair_scores(model.run).of_translator(translator, pairs, translator.beam(settings), progress))

    def pair_scores(self, run: Run) -> PairScores:
        return PairScores(data_of(run, PairData))

    def ensemble(self, run: Run, networks: Sequence[Network]) -> Ensemble:
        return Ensemble(networks)

    def translator(self, model: ModelParts) -> Translator:
        return Translator(self.vote(model), model.tokenizers, model.device, model.generation, model.name)

    def filler(self, model: ModelParts) -> WritingFiller | None:
        """Return the object that fills masks by generating the whole text, as BART does (Lewis 2020, section 2).

        A mask token in an imported vocabulary shows that the model learned to restore masked texts. A vocabulary
        learned by glassformer always has a mask token, so it does not show this.
        """
        if model.tokenizer.roles is None or model.tokenizer.mask_id is None:
            return None
        return WritingFiller(self.translator(model))

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        gives_tokens = run.model.is_encoder_decoder and isinstance(getattr(run.model, "head", TokenHead()), TokenHead)
        if len(sentinel_ids(tokenizer)) > 1 or not gives_tokens:
            return None
        return replace(run, data=PairData(), objective=Seq2SeqConfig())


class PairRunData(RunData):
    """Pairs of a run, split into training and validation data."""

    corpus: PairCorpus

    def __init__(self, run: Run) -> None:
        self.data = data_of(run, PairData)
        self.corpus = PairCorpus(self.data)

    def complete(self, run: Run, tokenizers: Tokenizers) -> ModelConfig:
        return preparation.with_vocabulary(run.model, tokenizers)

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        train, _ = self.corpus.split
        targets = [pair.target for pair in train]
        sources = [pair.source for pair in train]
        if run.source_tokenizer is None:
            tokenizers = Tokenizers(learn_tokenizer(run.tokenizer, sources + targets, reporter.phase))
        else:
            phase = reporter.phase
            target = learn_tokenizer(run.tokenizer, targets, phase, "learning the target tokenizer")
            source = learn_tokenizer(run.source_tokenizer, sources, phase, "learning the source tokenizer")
            tokenizers = Tokenizers(target, source)
        if tokenizers.target.eos_id is None:
            raise UserError("the tokenizer has no end token [EOS], which targets need: use a tokenizer with [EOS]")
        return tokenizers

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> "PreparedPairs":
        cache = preparation.token_cache(self.data, checks_hashes=checks_hashes)
        return PreparedPairs(run, self.corpus, tokenizers, cache, reporter)


class PreparedPairs:
    """Tokens of the training and validation pairs. Pairs that are too long are left out and logged."""

    def __init__(
        self, run: Run, corpus: PairCorpus, tokenizers: Tokenizers, cache: TokenCache, reporter: LaunchReporter
    ) -> None:
        self.run, self.corpus, self.tokenizers, self.cache = run, corpus, tokenizers, cache
        with reporter.phase("preparing tokens") as progress:
            splits = self._splits(replace(cache, progress=progress), preparation.first_dropout_seed(run))
        for note in (*splits.train.unknown(tokenizers), *splits.valid.unknown(tokenizers)):
            warn(note)
        self.train = within(splits.train, run.model, tokenizers, warn)
        self.valid = within(splits.valid, run.model, tokenizers, warn)
        if not self.valid.n_pairs:
            raise UserError("no validation pair fits model.max_len: raise it, or use shorter pairs")
        self.valid_pairs = [corpus.split[1][row] for row in self.valid.rows]

    def _splits(self, cache: TokenCache, seed: int) -> PairSplits:
        """Return the tokens of both sides; `seed` is the seed of BPE-dropout."""
        run = self.run
        dropout = BpeDropout(run.tokenizer.bpe_dropout, seed)
        source_dropout = BpeDropout((run.source_tokenizer or run.tokenizer).bpe_dropout, seed)
        return prepare_pairs(self.corpus, self.tokenizers, cache, dropout=dropout, source_dropout=source_dropout)

    @property
    def summary(self) -> str:
        train, valid = self.train, self.valid
        return (
            f"{train.n_pairs:,} training pairs of {train.source_lengths.mean():.1f} source and "
            f"{train.target_lengths.mean():.1f} target tokens, {valid.n_pairs:,} validation pairs"
        )

    def training_data(self, network: Network, device: torch.device, division: Division) -> TrainingData:
        run, data = self.run, data_of(self.run, PairData)

        def sampler_of_epoch(seed: int) -> tuple[Sampler, Path]:
            reencoded = self._splits(replace(self.cache, in_every_rank=True), seed)
            train = within(reencoded.train, run.model, self.tokenizers, lambda _: None)  # logged for the first epoch
            return TokenBudget(pair_rows(train), data.batch_tokens, seed), reencoded.folder

        seed = preparation.first_dropout_seed(run)
        first = TokenBudget(pair_rows(self.train), data.batch_tokens, seed or run.train.seed)
        slice_of_train = self.train.beginning(PAIRS_OF_TRAIN_EVALUATED)
        evaluated = {"train": pair_rows(slice_of_train), "valid": pair_rows(self.valid)}

        return TrainingData(
            objective_of(run.model, self.tokenizers, run.objective.label_smoothing),
            preparation.reencoded_each_epoch(run, first, sampler_of_epoch),
            {side: partial(evaluation_batches, rows, data.batch_tokens) for side, rows in evaluated.items()},
            sample=lambda: self._sample(network, device),
            score=self._score(network, device),
        )

    def _sample(self, network: Network, device: torch.device) -> str:
        """Return the first validation source and the model's output for it."""
        source = self.valid_pairs[0].source
        (best,) = Translator(network, self.tokenizers, device).translate([source], GREEDY)
        return f"{source} │ {best[0].text}"

    def _score(self, network: Network, device: torch.device) -> Callable[[Division], dict[str, float]] | None:
        """Return the function for the scores that the settings watch; `None` if they watch losses only."""
        data = data_of(self.run, PairData)
        watched = {watcher.metric for watcher in self.run.train.watchers.values()}
        names = [name for name in metrics.names(data.outputs) if name in watched]
        if not names:
            return None
        pair_scores = PairScores(data, names)
        pair_scores.require()
        pair_scores.require_defined(self.valid_pairs)

        def score(division: Division) -> dict[str, float]:
            translator = Translator(network, self.tokenizers, device)
            scores = pair_scores.of_translator(translator, self.valid_pairs, GREEDY, division=division)
            return metrics.numbers(scores, names)

        return score


def within(pairs: PairFile, model: ModelConfig, tokenizers: Tokenizers, log: Callable[[str], None]) -> PairFile:
    """Return the pairs that fit the model, and log how many do not."""
    source_max, target_max = model.encoder_max_len, model.max_len
    added = max(1, tokenizers.source.frames.source.n_added), max(1, tokenizers.target.frames.target.n_added)
    kept, n_left_out = pairs.within(source_max, target_max, added)
    if n_left_out:
        log(
            f"{n_left_out:,} of the {pairs.n_pairs:,} {pairs.name} are longer than the model's {source_max:,} "
            f"source or {target_max:,} target tokens and are left out"
        )
    return kept


TASK = TranslationTask()
