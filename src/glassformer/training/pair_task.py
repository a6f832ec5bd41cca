"""Pairs as material: aligned texts, their tokens, and the target learned from the source."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import BeamConfig, GenerationConfig, PairData, Run, Seq2SeqConfig
from glassformer.config.train import TrainConfig
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.data.batching import Example, Sampler
from glassformer.data.budget import TokenBudget, evaluation_batches, pair_rows
from glassformer.data.fresh_cuts import FreshCuts
from glassformer.data.pair_tokens import PairFile, PairSplits, Progress, prepare_pairs
from glassformer.data.pairs import PairCorpus
from glassformer.errors import UserError
from glassformer.evaluation.division import Division
from glassformer.evaluation.pairs import LOSSES, SCORES, require_scores, translation_scores
from glassformer.inference.translator import Translator
from glassformer.models.build import Network
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.training.material import Tokenizers, cache_folder, first_dropout_seed, learn_tokenizer
from glassformer.training.reporting import LaunchReporter
from glassformer.training.task import Task, watched_scores

PAIRS_OF_TRAIN_EVALUATED = 1000
GREEDY = BeamConfig(beam=1, max_ratio=3.0)
"""How validation sources are decoded while a model trains."""


class PairMaterial:
    """The pairs of a run and their split."""

    labels: tuple[str, ...] = ()
    n_outputs = 0
    mean_and_std = None

    def __init__(self, run: Run) -> None:
        self.data = pairs_of(run)
        self.corpus = PairCorpus(self.data)
        self.name = self.corpus.name

    @property
    def digest(self) -> str:
        return self.corpus.digest

    def trains_starts(self, run: Run) -> bool:
        return False

    def take_digest(self, digest: str) -> None:
        self.corpus.digest = digest

    def check(self, run: Run) -> None:
        model = run.model
        if not isinstance(run.objective, Seq2SeqConfig):
            raise UserError(f"pairs are learned with objective.kind seq2seq, and it is {run.objective.kind}")
        if isinstance(model, TransformerConfig):
            if not model.is_encoder_decoder:
                raise UserError("a target is made from a source by [model.encoder] and [model.decoder]; one is missing")
            if not isinstance(model.head, TokenHead):
                raise UserError(f"a target is made of tokens, and the model's head is of kind {model.head.kind}")
        if not isinstance(run.generation, BeamConfig) and run.generation != GenerationConfig():
            raise UserError("the target of a source is searched for: give [generation] kind beam, or leave it out")
        if run.train.batch_size != TrainConfig().batch_size:
            raise UserError("batches of pairs are measured in tokens: give data.batch_tokens, not train.batch_size")
        if model.share_embeddings and run.source_tokenizer is not None:
            raise UserError("model.share_embeddings needs one tokenizer for both sides: leave out [source_tokenizer]")
        if model.source_vocab_size and run.source_tokenizer is None:
            raise UserError("model.source_vocab_size is for a source with a tokenizer of its own: [source_tokenizer]")

    def news(self) -> list[str]:
        return self.corpus.news()

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        train, _ = self.corpus.split
        targets = [pair.target for pair in train]
        sources = [pair.source for pair in train]
        if run.source_tokenizer is None:
            tokenizers = Tokenizers(learn_tokenizer(run.tokenizer, sources + targets, reporter))
        else:
            target = learn_tokenizer(run.tokenizer, targets, reporter, "learning the target's tokenizer")
            source = learn_tokenizer(run.source_tokenizer, sources, reporter, "learning the source's tokenizer")
            tokenizers = Tokenizers(target, source)
        if tokenizers.target.eos_id is None:
            raise UserError("the tokenizer has no end token [EOS], and a target must end: learn one that has it")
        return tokenizers

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> "PreparedPairs":
        def splits_of(dropout_seed: int, progress: Progress | None = None) -> PairSplits:
            return prepare_pairs(
                self.corpus,
                tokenizers.target,
                tokenizers.source,
                cache_folder(self.data),
                dropout=run.tokenizer.dropout,
                source_dropout=(run.source_tokenizer or run.tokenizer).dropout,
                dropout_seed=dropout_seed,
                progress=progress,
                checks_hashes=checks_hashes,
            )

        with reporter.phase("preparing tokens") as progress:
            splits = splits_of(first_dropout_seed(run), progress)
        return PreparedPairs(run, self.corpus, tokenizers, splits, splits_of, reporter)


class PreparedPairs:
    """The tokens of both sides of both splits; pairs that are too long for the model are left out and told."""

    def __init__(
        self,
        run: Run,
        corpus: PairCorpus,
        tokenizers: Tokenizers,
        splits: PairSplits,
        splits_of: Callable[[int], PairSplits],
        reporter: LaunchReporter,
    ) -> None:
        """`splits` are those of the first epoch, `splits_of` gives those of a seed of BPE-dropout."""
        self.run, self.tokenizers, self.splits_of = run, tokenizers, splits_of
        self.train = within(splits.train, run.model, tokenizers, reporter.log)
        self.valid = within(splits.valid, run.model, tokenizers, reporter.log)
        if not self.valid.n_pairs:
            raise UserError("no validation pair fits the model: raise model.max_len, or give others")
        self.valid_pairs = [corpus.split[1][row] for row in self.valid.rows]

    @property
    def summary(self) -> str:
        train, valid = self.train, self.valid
        return (
            f"{train.n_pairs:,} training pairs of {train.source_lengths.mean():.1f} source and "
            f"{train.target_lengths.mean():.1f} target tokens, {valid.n_pairs:,} validation pairs"
        )

    def task(self, network: Network, device: torch.device) -> Task:
        run, data = self.run, pairs_of(self.run)

        def sampler_of_cuts(seed: int) -> tuple[Sampler, Path]:
            cut = self.splits_of(seed)
            train = within(cut.train, run.model, self.tokenizers, lambda _: None)  # said of the first epoch
            return TokenBudget(pair_rows(train), data.batch_tokens, seed), cut.folder

        seed = first_dropout_seed(run)
        first = TokenBudget(pair_rows(self.train), data.batch_tokens, seed or run.train.seed)
        slice_of_train = self.train.beginning(PAIRS_OF_TRAIN_EVALUATED)
        objective = objective_of(run.model, self.tokenizers, run.objective.label_smoothing)

        def batches(pairs: PairFile) -> Callable[[], Sequence[Sequence[Example]]]:
            return lambda: list(evaluation_batches(pair_rows(pairs), data.batch_tokens))

        return Task(
            objective,
            FreshCuts(first, sampler_of_cuts, run.train.seed) if seed else first,
            {"train": batches(slice_of_train), "valid": batches(self.valid)},
            n_bytes={"train": None, "valid": None},
            sample=lambda: self._sample(network, device),
            score=self._score(network, device),
        )

    def _translator(self, network: Network, device: torch.device) -> Translator:
        return Translator(network, self.tokenizers.target, self.tokenizers.source, device)

    def _sample(self, network: Network, device: torch.device) -> str:
        """The first validation source, and what the model makes of it."""
        source = self.valid_pairs[0].source
        (best,) = self._translator(network, device).translate([source], GREEDY)
        return f"{source} │ {best[0].text}"

    def _score(self, network: Network, device: torch.device) -> Callable[[Division], dict[str, float]] | None:
        """The scores of greedy outputs that the run's settings watch; None where they watch losses alone."""
        data = pairs_of(self.run)
        names = watched_scores(self.run.train, LOSSES, SCORES[data.outputs], f"for {data.outputs}")
        if not names:
            return None
        require_scores(data.outputs)

        def score(division: Division) -> dict[str, float]:
            translator = self._translator(network, device)
            scores = translation_scores(translator, self.valid_pairs, data, GREEDY, division=division)
            return {name: float(scores[name]) for name in names}

        return score


def pairs_of(run: Run) -> PairData:
    """The pairs of a run; `UserError` when it learns from a text."""
    if not isinstance(run.data, PairData):
        raise UserError(f"the run {run.name!r} learns from a text, and pairs of source and target are needed")
    return run.data


def objective_of(model: ModelConfig, tokenizers: Tokenizers, label_smoothing: float) -> Seq2SeqObjective:
    """The objective with the ids that the model and its tokenizers say."""
    if model.decoder_start_id is None or model.eos_id is None:
        raise UserError("an encoder-decoder needs decoder_start_id and eos_id in its configuration")
    source, target = tokenizers.source.frames.source, tokenizers.target.frames.target
    return Seq2SeqObjective(model.decoder_start_id, source, target, label_smoothing)


def within(pairs: PairFile, model: ModelConfig, tokenizers: Tokenizers, log: Callable[[str], None]) -> PairFile:
    """The pairs that fit the model; how many do not is said."""
    source_max, target_max = model.encoder_max_len, model.max_len
    added = max(1, tokenizers.source.frames.source.n_added), max(1, tokenizers.target.frames.target.n_added)
    kept, n_left_out = pairs.within(source_max, target_max, added)
    if n_left_out:
        log(
            f"{n_left_out:,} of the {pairs.n_pairs:,} {pairs.name} are longer than the model's {source_max:,} "
            f"source or {target_max:,} target tokens and are left out"
        )
    return kept
