"""The models that the benchmarks compare have equal size and architecture."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from glassformer.config.presets import preset
from glassformer.config.train import TrainConfig
from glassformer.cost.activations import Kernels, activations
from glassformer.cost.flops import Shape
from glassformer.models.build import build_model

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass needs its module there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return load("gpt_peers")


def randomise(network: nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)


def test_plain_gpt_equals_gpt2(peers: ModuleType) -> None:
    """The hand-written GPT of the training benchmark gives transformers' logits for the same weights."""
    shape = peers.Decoder(n_layers=2, n_heads=4, d_model=32, vocab_size=50, context=16, batch=2)
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
def test_all_peers_have_the_same_size(peers: ModuleType) -> None:
    """Numbers of parameters differ by less than 5 %, so that no model is faster because it is smaller."""
    shape = peers.Decoder(4, 4, 128, 65, 64, 12)
    sizes = {name: sum(p.numel() for p in make(shape).parameters()) for name, make in peers.MODELS.items()}
    assert max(sizes.values()) < 1.05 * min(sizes.values()), sizes
    ids = torch.randint(shape.vocab_size, (2, shape.context))
    for name, make in peers.MODELS.items():
        assert make(shape)(ids).shape == (2, shape.context, shape.vocab_size), name


def test_translation_peers_have_the_same_size_and_shape() -> None:
    """Trained parameters of the encoder-decoders differ by less than 1 %."""
    peers = load("translation_peers")
    shape = peers.EncoderDecoder(2, 4, 32, 64, 50, batch=3, n_source=7, n_target=5)
    inputs, labels = shape.inputs(torch.device("cpu"))
    sizes = {}
    for name, make in peers.MODELS.items():
        network = make(shape)
        assert network(*inputs).shape == (*labels.shape, shape.vocab_size), name
        sizes[name] = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert max(sizes.values()) < 1.01 * min(sizes.values()), sizes


def test_the_translation_shape_equals_marian() -> None:
    """Both have the same number of trained parameters."""
    peers = load("translation_peers")
    shape = peers.EncoderDecoder(1, 2, 16, 32, 50)
    own = sum(p.numel() for p in peers.ours(shape).parameters())
    theirs = sum(p.numel() for p in peers.marian(shape).parameters() if p.requires_grad)
    assert own == theirs


def test_the_plan_equals_the_memory_that_autograd_saves() -> None:
    """Run the measurement of the benchmark on a small model."""
    plan = load("plan")
    config = replace(preset("modern-mini"), vocab_size=50)
    network, ids = build_model(config), torch.randint(50, (2, 9))
    kept = activations(config, Shape(2, 8), Kernels(on_cpu=True))
    divisor = 4
    assert plan.kept_bytes(network, ids, half=False) == kept.layers + kept.logits // 2 + divisor
    assert plan.step_seconds(network, ids, False, TrainConfig(), n_steps=1) > 0
