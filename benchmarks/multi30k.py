"""Training steps on real batches of Multi30k, with padding; the amount is the number of real target tokens."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import translation_peers
from glassformer.config.run import PairData
from glassformer.cost.flops import Shape, training_flops
from glassformer.data.batching import Batch, TokenBudget
from glassformer.data.pair_rows import encode_pairs, pair_rows
from glassformer.data.pairs import PairCorpus
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.tokenization.frames import Frame
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from task import Task
from train import How, of_pairs

BATCHES = "batches.pt"


def prepared(folder: str, data: str, vocab_size: int, batch_tokens: int, n_batches: int) -> Task:
    """Learn a joint tokenizer, and write batches of the first epoch to `folder`, as a run would draw them."""
    pairs = PairCorpus(PairData(source=str(Path(data) / "train.de"), target=str(Path(data) / "train.en"))).whole()
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    tokenizer = Tokenizer.train(texts, vocab_size=vocab_size)
    rows = pair_rows(encode_pairs(pairs, Tokenizers(tokenizer), "training pairs"))
    start, end = tokenizer.bos_id, tokenizer.eos_id
    assert start is not None and end is not None  # special tokens of every tokenizer that is trained here
    frame = Frame(after=(end,))
    objective = Seq2SeqObjective(start, frame, frame)
    sampler = TokenBudget(rows, batch_tokens, seed=0)
    batches = [objective.collate(sampler.batch(i), np.random.default_rng(0)) for i in range(n_batches)]
    torch.save([{name: x for name, x in asdict(batch).items() if x is not None} for batch in batches], _file(folder))
    return Task(lambda: None)


def train(model: str, folder: str, sizes: dict[str, int], **how: Any) -> Task:
    """Train an encoder-decoder on the prepared batches; a round is one pass over them."""
    torch.manual_seed(0)
    batches = [Batch(**fields) for fields in torch.load(_file(folder))]
    shape = translation_peers.EncoderDecoder(**sizes)
    task = of_pairs(translation_peers, model, shape, batches, How(**how))
    config = translation_peers.ours(shape).config
    flops = [training_flops(config, _shape_of(batch)) for batch in batches]
    return replace(task, flops=sum(flops) / len(flops))


def _shape_of(batch: Batch) -> Shape:
    assert batch.source_ids is not None
    n_rows, n_tokens = batch.token_ids.shape
    return Shape(n_rows, n_tokens, batch.source_ids.shape[1])


def _file(folder: str) -> Path:
    return Path(folder) / BATCHES
