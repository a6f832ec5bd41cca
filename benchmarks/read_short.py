"""Labels and masks of short texts: glassformer, transformers, and a plain loop.

The texts are ids. Glassformer also orders them by length, and pads each batch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import bert_peers
from glassformer.config.transformer import SequenceHead
from glassformer.data.batching import Example
from glassformer.inference.classify import predict
from glassformer.models.build import build_model
from plain_loops import PlainEncoder
from rates import DTYPES
from task import Precision, Task

N_LABELS = 3


def ours(precision: Precision, labels: bool, n_texts: int, sizes: dict[str, int]) -> Task:
    """Predict with `inference.classify.predict`."""
    model, rows = network(labels, sizes).to(DTYPES[precision]), [Example(row) for row in drawn(n_texts, sizes).numpy()]
    return Task(lambda: predict(model, rows), amount=n_texts)


def plain(precision: Precision, labels: bool, n_texts: int, sizes: dict[str, int]) -> Task:
    """Predict with a plain loop (`plain_loops.py`), all texts at once."""
    encoder, token_ids = PlainEncoder(network(labels, sizes).to(DTYPES[precision])), drawn(n_texts, sizes)
    return Task(lambda: encoder(token_ids).float(), amount=n_texts)


def transformers(precision: Precision, n_texts: int, sizes: dict[str, int]) -> Task:
    """Predict all tokens with BertForMaskedLM, all texts at once."""
    torch.manual_seed(0)
    model = bert_peers.transformers_bert(bert_peers.Bert(**sizes)).to(DTYPES[precision]).eval()
    token_ids = drawn(n_texts, sizes)
    return Task(_inference(lambda: model(token_ids)), amount=n_texts)


def network(labels: bool, sizes: dict[str, int]) -> Any:
    """Build a model with random weights, the same in every process: a classifier, or one that predicts tokens."""
    torch.manual_seed(0)
    config = bert_peers.Bert(**sizes).config
    return build_model(replace(config, head=SequenceHead(N_LABELS)) if labels else config).eval()


def drawn(n_texts: int, sizes: dict[str, int]) -> torch.Tensor:
    shape = (n_texts, sizes["n_tokens"])
    return torch.randint(1, sizes["vocab_size"], shape, generator=torch.Generator().manual_seed(0))


def _inference(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return call()

    return run
