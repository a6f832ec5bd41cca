"""The number of Python calls and of PyTorch's operations in one step. A change that makes one larger states why.

Calls of functions of glassformer and of `torch.nn` count. Other parts of PyTorch make more calls after some imports.
At these sizes, a step spends more time on calls and on operations than on products. The numbers are those of a CPU
without special paths, so that they are the same on all processors.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import glassformer
from configs import BERT, GPT, random_inputs, random_model
from glassformer.config.presets import preset
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.config.train import AdamWConfig
from glassformer.data.batching import Batch
from glassformer.inference.beam import beam_search
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.search import Search
from glassformer.models.build import build_model
from glassformer.nn.kernels import processor
from glassformer.objectives.causal import CausalObjective
from glassformer.training.optimizers.build import build_optimizer
from runs import step_of

LIMITS = {
    "decoding: one text": (272, 188),
    "decoding: each further layer": (51, 41),
    "decoding: 16 texts, sampled": (306, 200),
    "training: a decoder of two layers": (627, 333),
    "training: an encoder of two layers": (689, 364),
    "translation: greedy": (271, 122),
    "recurrent translation: greedy": (154, 86),
    "translation: a beam of 3": (317, 157),
    "recurrent translation: a beam of 3": (203, 92),
    "reading: a classifier": (299, 59),
}
"""Python calls, and operations of PyTorch's dispatcher."""
COUNTED = tuple(str(Path(str(module.__file__)).parent) for module in (glassformer, torch.nn))


class Operations(TorchDispatchMode):
    n = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += 1
        return function(*args, **kwargs or {})


def cost(step: Callable[[], object]) -> tuple[int, int]:
    """Return the numbers of Python calls and of operations of a step, after two steps to warm up."""
    n_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal n_calls
        if event == "call":
            n_calls += frame.f_code.co_filename.startswith(COUNTED)

    for _ in range(2):
        step()
    gc.disable()
    try:
        sys.setprofile(count)
        step()
    finally:
        sys.setprofile(None)
        gc.enable()
    with Operations() as operations:
        step()
    return n_calls, operations.n


def decoding(n_layers: int, n_texts: int, temperature: float = 0.0) -> tuple[int, int]:
    """Return the cost of a step of the demo's model."""
    config = replace(preset("modern-mini"), vocab_size=2048, max_len=64)
    model = build_model(replace(config, decoder=replace(config.decoder, n_layers=n_layers))).eval()  # type: ignore[type-var]
    settings = Settings(GenerationConfig(max_new_tokens=30, temperature=temperature, seed=1), 64)
    steps = iter(Generation(model, [[1, 2, 3]] * n_texts, settings))
    return cost(lambda: next(steps))


def training(name: str) -> tuple[int, int]:
    config = {"decoder": GPT, "encoder": BERT}[name]
    model = random_model(config, dtype=torch.float32)
    ids = random_inputs(model).token_ids
    batch = Batch(token_ids=ids, labels=ids, n_targets=ids.numel())
    step = step_of(model, build_optimizer(model, AdamWConfig()), CausalObjective())
    return cost(lambda: step([batch], [0]))


def translation(name: str, beam: int) -> tuple[int, int]:
    """Return the cost of the last step of a search: that of a search with one step more, less that of a search."""
    model = random_model(name, dtype=torch.float32)
    sources = random_inputs(model).others["source_ids"]

    def search(n_steps: int) -> Callable[[], object]:
        config = BeamConfig(beam, max_new_tokens=n_steps)
        return lambda: beam_search(model, (sources, None), Search(config, 1, 2, 20, suppress_ids=[2]))

    longer, shorter = cost(search(7)), cost(search(6))
    return longer[0] - shorter[0], longer[1] - shorter[1]


def reading() -> tuple[int, int]:
    model = random_model("classifier_first", dtype=torch.float32)
    ids = random_inputs(model).token_ids
    with torch.inference_mode():
        return cost(lambda: model(ids))


def measured() -> Iterator[tuple[str, tuple[int, int]]]:
    one, two = decoding(4, 1), decoding(5, 1)
    yield "decoding: one text", one
    yield "decoding: each further layer", (two[0] - one[0], two[1] - one[1])
    yield "decoding: 16 texts, sampled", decoding(4, 16, temperature=1.0)
    for name in ("decoder", "encoder"):
        yield f"training: {'a' if name == 'decoder' else 'an'} {name} of two layers", training(name)
    for beam, what in ((1, "greedy"), (3, "a beam of 3")):
        yield f"translation: {what}", translation("paper", beam)
        yield f"recurrent translation: {what}", translation("bahdanau", beam)
    yield "reading: a classifier", reading()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python make other numbers of calls")
def test_no_step_has_more_calls_or_operations_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(processor.this, has_onednn=False, known=processor.FIXED["onednn"])
    monkeypatch.setattr(processor, "this", plain)
    found = dict(measured())
    assert found.keys() == LIMITS.keys()
    above = {name: n for name, n in found.items() if n[0] > LIMITS[name][0] or n[1] > LIMITS[name][1]}
    assert not above, f"Python calls and operations above the limits of this file: {above}"
