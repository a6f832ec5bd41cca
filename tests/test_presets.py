"""Pitfall 17: the numbers of famous models, against the parameter counts of their published classes."""

from dataclasses import replace

import pytest

from glassformer.config import LearnedPositions, TransformerConfig
from glassformer.errors import UserError
from glassformer.models.build import build_model
from glassformer.presets import PRESETS, preset


def count(config: TransformerConfig) -> int:
    return build_model(config, device="meta").n_parameters()


def decoder_only(n_layers: int, d_model: int, vocab_size: int, max_len: int) -> int:
    """GPT-2's closed form: per layer 12 d² of matrices, 9 d of their biases and 4 d of two norms."""
    per_layer = 12 * d_model**2 + 13 * d_model
    return n_layers * per_layer + (vocab_size + max_len) * d_model + 2 * d_model


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("bert-base", 109_514_298),  # BertForMaskedLM
        ("bart-base", 139_420_416),
        ("marian", 73_886_208),
        ("t5-small", 60_506_624),
        ("llama-3.1-8b", 8_030_261_248),
        ("transformer-base", 63_082_496),
        ("transformer-big", 214_245_376),
    ],
)
def test_pitfall_17_parameter_counts(name: str, expected: int) -> None:
    assert count(preset(name)) == expected


@pytest.mark.parametrize(
    ("name", "n_layers", "d_model", "billions"),
    [
        ("gpt3-small", 12, 768, 0.125),
        ("gpt3-medium", 24, 1024, 0.350),
        ("gpt3-large", 24, 1536, 0.760),
        ("gpt3-xl", 24, 2048, 1.3),
        ("gpt3-2.7b", 32, 2560, 2.7),
        ("gpt3-6.7b", 32, 4096, 6.7),
        ("gpt3-13b", 40, 5120, 13.0),
        ("gpt3-175b", 96, 12288, 175.0),
    ],
)
def test_pitfall_17_gpt3(name: str, n_layers: int, d_model: int, billions: float) -> None:
    """The closed form to the last parameter, and the published name to its rounding."""
    n_parameters = count(preset(name))
    assert n_parameters == decoder_only(n_layers, d_model, 50257, 2048)
    assert n_parameters / 1e9 == pytest.approx(billions, rel=0.025)


@pytest.mark.parametrize(("name", "expected"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_pitfall_17_bert_without_its_head(name: str, expected: int) -> None:
    """BertModel is the encoder and a pooler, one dense layer of d_model × d_model."""
    config = preset(name)
    encoder = build_model(config, device="meta").encoder
    assert encoder is not None
    pooler = config.d_model**2 + config.d_model
    assert sum(p.numel() for p in encoder.parameters()) + pooler == expected


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_model_whose_heads_fill_it(name: str) -> None:
    config = replace(PRESETS[name], vocab_size=PRESETS[name].vocab_size or 256)  # 0 = the tokenizer's
    model = build_model(config, device="meta")
    assert all(p.is_meta for p in model.parameters())
    for stack in (config.encoder, config.decoder):
        if stack is not None and not name.startswith("t5"):
            assert stack.n_heads * (stack.d_head or config.d_model // stack.n_heads) == config.d_model
    if isinstance(config.positions, LearnedPositions):
        table = model.get_submodule(f"{'decoder' if config.decoder else 'encoder'}.embeddings.positions.table")
        assert table.weight.shape[0] == config.max_len + config.positions.offset


def test_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean gpt2"):
        preset("gpt-2")
