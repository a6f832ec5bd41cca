"""Greedy decoding of a recurrent encoder-decoder with additive attention: glassformer, and a plain loop."""

from typing import Any

import torch

import bahdanau_peers
from bahdanau_peers import Recurrent
from glassformer.config.run import BeamConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.search import Search
from plain_loops import plain_recurrent_search
from rates import DTYPES
from task import Precision, Task

START, END = 1, 2


def ours(precision: Precision, n_new: int, sizes: dict[str, int]) -> Task:
    """Decode with `inference.beam.beam_search`."""
    shape, sources = Recurrent(**sizes), drawn(sizes)
    torch.manual_seed(0)
    model: Any = bahdanau_peers.ours(shape).to(DTYPES[precision]).eval()
    search = Search(BeamConfig(1, max_new_tokens=n_new), START, END, n_new, suppress_ids=[END])
    return Task(lambda: beam_search(model, (sources, None), search), amount=shape.batch)


def plain(precision: Precision, n_new: int, sizes: dict[str, int]) -> Task:
    """Decode with a plain loop (`plain_loops.py`)."""
    shape, sources = Recurrent(**sizes), drawn(sizes)
    torch.manual_seed(0)
    model = bahdanau_peers.PlainBahdanau(shape).to(DTYPES[precision]).eval()
    return Task(lambda: plain_recurrent_search(model, sources, START, END, n_new), amount=shape.batch)


def drawn(sizes: dict[str, int]) -> torch.Tensor:
    shape = (sizes["batch"], sizes["n_source"])
    return torch.randint(END + 1, sizes["vocab_size"], shape, generator=torch.Generator().manual_seed(0))
