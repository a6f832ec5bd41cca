"""The peers of the benchmarks are what they claim to be."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", BENCHMARKS / "peers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def randomise(network: nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)


def test_plain_gpt_is_gpt2(peers: ModuleType) -> None:
    """The hand-written GPT of the training benchmark gives transformers' logits for the same weights."""
    shape = peers.Shape(n_layers=2, n_heads=4, d_model=32, vocab_size=50, context=16, batch=2)
    theirs = peers.transformers_gpt2(shape).eval()
    plain = peers.PlainGPT(shape, bias=True).eval()
    randomise(theirs)
    stored = theirs.model.state_dict()
    names = {"attn.c_attn": "c_attn", "attn.c_proj": "c_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}
    weights = {}
    for name, value in stored.items():
        own = name.removeprefix("transformer.")
        is_projection = any(old in own for old in names)
        for old, new in names.items():
            own = own.replace(old, new)
        weights[own] = value.T if is_projection and value.dim() == 2 else value
    plain.load_state_dict(weights)
    ids = torch.randint(50, (2, 16))
    torch.testing.assert_close(plain(ids), theirs(ids), atol=1e-4, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # x-transformers, at import
def test_all_peers_have_one_size(peers: ModuleType) -> None:
    """Nobody in the benchmark is faster for being smaller: parameters differ by less than 5 %."""
    shape = peers.SHAPES["shakespeare"]
    sizes = {name: sum(p.numel() for p in make(shape).parameters()) for name, make in peers.MODELS.items()}
    assert max(sizes.values()) < 1.05 * min(sizes.values()), sizes
    ids = torch.randint(shape.vocab_size, (2, shape.context))
    for name, make in peers.MODELS.items():
        assert make(shape)(ids).shape == (2, shape.context, shape.vocab_size), name
