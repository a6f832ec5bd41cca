"""The models that the benchmarks compare have equal size and architecture."""

from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import nn

from benchmark_files import load
from glassformer.config.presets import preset
from glassformer.config.run import BeamConfig
from glassformer.config.train import TrainConfig
from glassformer.cost.activations import Kernels, activations
from glassformer.cost.flops import Shape
from glassformer.inference.beam import beam_search
from glassformer.inference.search import Search
from glassformer.models.build import build_model
from tolerances import NETWORK, assert_close


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
    assert_close(plain(ids), theirs(ids), terms=NETWORK)


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


@pytest.mark.parametrize("batch", [1, 3])
def test_the_plain_loop_writes_the_ids_of_glassformer(batch: int) -> None:
    small = load("decode_small")
    work = {"precision": "fp32", "batch": batch, "n_new": 12}
    work["sizes"] = {"n_layers": 2, "d_model": 32, "n_heads": 2, "vocab_size": 60}
    ours, plain = small.ours(**work).call(), small.plain(**work).call()
    assert ours == plain and len({i for row in ours for i in row}) > 3


@pytest.mark.parametrize("beam", [1, 4])
def test_the_plain_search_finds_the_targets_of_glassformer(beam: int) -> None:
    peers, loops, decoding = load("translation_peers"), load("plain_loops"), load("decode_translation")
    torch.manual_seed(2)
    model = peers.ours(peers.EncoderDecoder(2, 4, 32, 64, 60)).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter)  # so large that the targets vary
    sources = torch.randint(4, 60, (16, 7))
    search = decoding.Search(decoding.BeamConfig(beam, max_new_tokens=9), 0, 1, 64, suppress_ids=[1])
    with torch.no_grad():
        ours = [row[0].ids for row in decoding.beam_search(model, (sources, None), search)]
    plain = loops.PlainTranslator(model).search(sources, 0, 1, 9, beam).tolist()
    assert [list(ids) for ids in ours] == plain and len({i for row in plain for i in row}) > 4


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


def test_plain_bahdanau_equals_glassformer() -> None:
    """The model that is written by hand has the parameters of glassformer's, and the same logits for equal weights."""
    peers = load("bahdanau_peers")
    shape = peers.Recurrent(8, 6, 10, 50, batch=3, n_source=7, n_target=5)
    own, plain = peers.ours(shape), peers.PlainBahdanau(shape)
    randomise(own)
    weights = dict(own.named_parameters())
    vector = weights.pop("decoder.cross_attn.vector")
    names = {
        "encoder.tokens": "table",
        "encoder.cells": "encoder",
        "bridge.hidden.0": "bridge",
        "decoder.cells": "cell",
        "decoder.deep_output.state_proj": "of_state",
        "decoder.deep_output.token_proj": "of_token",
        "decoder.deep_output.context_proj": "of_context",
        "decoder.cross_attn.q_proj": "query",
        "decoder.cross_attn.k_proj": "key",
        "output.proj": "head",
    }
    renamed = {"score.weight": vector[None]}
    for name, value in weights.items():
        module, _, last = name.rpartition(".")
        is_cell = module == "decoder.cells"
        renamed[f"{names[module]}.{last.removesuffix('_l0') if is_cell else last}"] = value
    plain.load_state_dict(renamed)
    (source, target), _ = shape.inputs(torch.device("cpu"))
    assert_close(plain(source, target), own(target, source_ids=source))
    search = Search(BeamConfig(1, max_new_tokens=9), 1, 2, 9, suppress_ids=[2])
    ours = [list(row[0].ids) for row in beam_search(own, (source, None), search)]
    found = load("plain_loops").plain_recurrent_search(plain, source, 1, 2, 9).tolist()
    assert found == ours and len({i for row in ours for i in row}) > 3


@pytest.mark.parametrize("labels", [True, False])
def test_the_plain_encoder_gives_the_logits_of_glassformer(labels: bool) -> None:
    reading = load("read_short")
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 32, "vocab_size": 120, "n_tokens": 7}
    model = reading.network(labels, sizes)
    randomise(model)
    token_ids = reading.drawn(3, sizes)
    ours = torch.stack(reading.predict(model, [reading.Example(row) for row in token_ids.numpy()]))
    assert ours.shape[-1] == (3 if labels else 120)
    assert_close(reading.PlainEncoder(model)(token_ids), ours, terms=NETWORK)


def test_both_berts_have_the_same_size_and_targets() -> None:
    """Every row of the batch has the same number of masked tokens, which are the targets of both models."""
    peers = load("bert_peers")
    shape = peers.Bert(1, 2, 16, 200, batch_size=2, n_tokens=8, n_masked=3)
    own, other = peers.ours(shape), peers.transformers_bert(shape)
    assert sum(p.numel() for p in own.parameters()) == sum(p.numel() for p in other.parameters())
    batch = shape.batch()
    scored = batch.labels != -100
    assert scored.sum(dim=1).tolist() == [3, 3] and batch.n_targets == 6
    assert (batch.token_ids[scored] == peers.MASK_ID).all()
    assert own(**batch.model_inputs()).shape == (6, 200) and other(batch.token_ids).shape == (2, 8, 200)


def test_padding_does_not_change_the_logits_of_the_translation_peers() -> None:
    """So the batches of Multi30k mean the same for all models."""
    peers = load("translation_peers")
    shape = peers.EncoderDecoder(1, 2, 16, 32, 50, batch=2, n_source=7, n_target=5)
    (source, target), _ = shape.inputs(torch.device("cpu"))
    changed, real = source.clone(), torch.ones_like(source, dtype=torch.bool)
    real[:, 5:] = False
    changed[:, 5:] = 3
    for name, make in peers.MODELS.items():
        network = make(shape).eval()
        both = [network(ids, target, real, torch.ones_like(target, dtype=torch.bool)) for ids in (source, changed)]
        assert_close(*both, msg=name)
