"""Pitfall 17: the presets of known models have the parameter counts of the published classes."""

from dataclasses import replace

import pytest

from glassformer.common.errors import UserError
from glassformer.config.presets import N_PARAMETERS, PRESETS, RECURRENT_PRESETS, SAME_PRESET, preset
from glassformer.config.recurrent import AttendAfter, AttendBefore, NoAttention
from glassformer.config.transformer import LearnedPositions, SequenceHead, SinusoidalPositions, TransformerConfig
from glassformer.models.build import build_model
from tolerances import about


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
def test_pitfall_17_presets_have_the_published_parameter_counts(name: str, expected: int) -> None:
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
def test_pitfall_17_gpt3_has_the_parameter_count_of_its_formula(
    name: str, n_layers: int, d_model: int, billions: float
) -> None:
    """The count equals the closed form exactly, and the published size after rounding."""
    n_parameters = count(preset(name))
    assert n_parameters == decoder_only(n_layers, d_model, 50257, 2048)
    assert n_parameters / 1e9 == about(billions, percent=2.5)


def test_the_listed_parameter_counts_are_those_of_the_networks() -> None:
    every = PRESETS | RECURRENT_PRESETS
    assert {name: count(config) for name, config in every.items() if config.vocab_size} == N_PARAMETERS


@pytest.mark.parametrize(("name", "expected"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_pitfall_17_bert_without_its_head_has_the_published_count(name: str, expected: int) -> None:
    """BertModel consists of the encoder and a pooler, one dense layer of d_model × d_model."""
    config = preset(name)
    encoder = build_model(config, device="meta").encoder
    assert encoder is not None
    pooler = config.d_model**2 + config.d_model
    assert sum(p.numel() for p in encoder.parameters()) + pooler == expected


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_model_whose_heads_fill_d_model(name: str) -> None:
    config = replace(PRESETS[name], vocab_size=PRESETS[name].vocab_size or 256)  # 0 = the tokenizer's
    model = build_model(config, device="meta")
    assert all(p.is_meta for p in model.parameters())
    for stack in (config.encoder, config.decoder):
        if stack is not None and not name.startswith("t5"):
            assert stack.n_heads * config.attention_widths(stack).d_head == config.d_model
    if isinstance(config.positions, LearnedPositions):
        table = model.get_submodule(f"{'decoder' if config.decoder else 'encoder'}.embeddings.positions.table")
        assert table.weight.shape[0] == config.max_len + config.positions.offset


def test_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean gpt2"):
        preset("gpt-2")


SHAPES = {  # layers, heads, d_model, d_ff, as published
    "gpt-mini": (6, 6, 192, 768),
    "gpt2": (12, 12, 768, 3072),
    "gpt2-medium": (24, 16, 1024, 4096),
    "gpt2-large": (36, 20, 1280, 5120),
    "gpt2-xl": (48, 25, 1600, 6400),
    "gpt3-small": (12, 12, 768, 3072),
    "gpt3-medium": (24, 16, 1024, 4096),
    "gpt3-large": (24, 16, 1536, 6144),
    "gpt3-xl": (24, 16, 2048, 8192),
    "gpt3-2.7b": (32, 32, 2560, 10240),
    "gpt3-6.7b": (32, 32, 4096, 16384),
    "gpt3-13b": (40, 40, 5120, 20480),
    "gpt3-175b": (96, 96, 12288, 49152),
    "bert-base": (12, 12, 768, 3072),
    "bert-large": (24, 16, 1024, 4096),
    "bart-base": (6, 12, 768, 3072),
    "bart-large": (12, 16, 1024, 4096),
    "transformer-base": (6, 8, 512, 2048),
    "transformer-big": (6, 16, 1024, 4096),
    "marian": (6, 8, 512, 2048),
    "llama-3.1-8b": (32, 32, 4096, 14336),
    "t5-small": (6, 8, 512, 2048),
    "t5-base": (12, 12, 768, 3072),
}


def test_pitfall_17_every_published_preset_is_in_these_tests() -> None:
    assert {name for name in PRESETS if not name.startswith("modern")} == set(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_pitfall_17_every_preset_has_the_published_shape(name: str) -> None:
    """The number of heads does not change the parameter count, so the counts above do not check it."""
    config = preset(name)
    for stack in (config.encoder, config.decoder):
        if stack is not None:
            assert (stack.n_layers, stack.n_heads, config.d_model, stack.d_ff) == SHAPES[name]


ACTIVATIONS = {"gelu_new": "gelu_tanh", "swish": "silu"}
THEIRS = {  # fields of glassformer → keys of transformers' default configuration
    "gpt2": ("GPT2Config", {"norm_eps": "layer_norm_epsilon", "activation": "activation_function"}),
    "bert-base": ("BertConfig", {"norm_eps": "layer_norm_eps", "activation": "hidden_act"}),
    "bart-large": ("BartConfig", {"activation": "activation_function"}),
    "marian": ("MarianConfig", {}),
    "t5-small": ("T5Config", {"norm_eps": "layer_norm_epsilon", "activation": "dense_act_fn"}),
    "llama-3.1-8b": ("LlamaConfig", {"activation": "hidden_act"}),
}
DROPOUTS = {
    "gpt2": {"embedding": "embd_pdrop", "residual": "resid_pdrop", "attention": "attn_pdrop"},
    "bert-base": {"residual": "hidden_dropout_prob", "attention": "attention_probs_dropout_prob"},
    "bart-large": {"residual": "dropout", "attention": "attention_dropout", "ff": "activation_dropout"},
    "marian": {"residual": "dropout", "attention": "attention_dropout", "ff": "activation_dropout"},
    "t5-small": {"residual": "dropout_rate", "attention": "dropout_rate", "ff": "dropout_rate"},
    "llama-3.1-8b": {"attention": "attention_dropout"},
}


@pytest.mark.parametrize("name", THEIRS)
def test_pitfall_17_presets_have_the_published_hyperparameters(name: str) -> None:
    """Epsilons, activations and dropouts equal the default configuration of the family in transformers."""
    transformers = pytest.importorskip("transformers")
    config, (class_name, keys) = preset(name), THEIRS[name]
    theirs = getattr(transformers, class_name)()
    for ours, key in keys.items():
        expected = getattr(theirs, key)
        assert getattr(config, ours) == ACTIVATIONS.get(expected, expected), ours
    for ours, key in DROPOUTS[name].items():
        assert getattr(config, f"{ours}_dropout") == getattr(theirs, key), ours
    if name in ("bart-large", "marian"):
        assert config.norm_eps == 1e-5, "both use torch's default"
    if name == "bart-large":
        assert config.embedding_scale == (0.0 if theirs.scale_embedding else 1.0)


@pytest.mark.parametrize(("name", "dropout"), [("transformer-base", 0.1), ("transformer-big", 0.3)])
def test_pitfall_12_the_preset_of_the_paper_follows_its_text(name: str, dropout: float) -> None:
    """Vaswani 2017: LayerNorm(x + Sublayer(x)) (section 3.1), embeddings × √d_model (3.4), P_drop (table 3)."""
    config = preset(name)
    assert (config.norm, config.norm_order, config.final_norm) == ("layernorm", "post", False)
    assert (config.activation, config.embedding_scale, config.share_embeddings) == ("relu", 0, True)
    assert (config.embedding_dropout, config.residual_dropout) == (dropout, dropout)
    assert (config.attention_dropout, config.ff_dropout) == (0.0, 0.0)
    assert isinstance(config.positions, SinusoidalPositions) and config.positions.layout == "interleaved"


@pytest.mark.parametrize(("names", "order"), [(("gpt", "llama", "t5"), "pre"), (("bert", "bart", "marian"), "post")])
def test_pitfall_12_families_have_the_published_norm_position(names: tuple[str, ...], order: str) -> None:
    found = [name for name in PRESETS if name.startswith(names)]
    assert found
    for name in found:
        config = preset(name)
        assert (config.norm_order, config.final_norm) == (order, order == "pre"), name


def test_changes_of_a_preset_keep_what_belongs_together() -> None:
    small = preset("bart", d_model=64, n_layers=1, num_heads=4, vocab_size=60, dropout=0.3)
    for stack in (small.encoder, small.decoder):
        assert stack is not None and (stack.n_layers, stack.n_heads, stack.d_ff) == (1, 4, 256)
    assert (small.embedding_dropout, small.residual_dropout, small.attention_dropout) == (0.3, 0.3, 0.3)
    assert (small.eos_id, small.mask_id) == (2, None), "an id beyond the vocabulary is dropped"
    assert preset("gpt2", d_model=96, d_ff=8).decoder == replace(PRESETS["gpt2"].decoder, d_ff=8)
    assert preset("encoder", n_labels=3, hidden_size=48).head == SequenceHead(3)
    assert preset("transformer-base", decoder=None, share_embeddings=False, n_layers=2).decoder is None
    with pytest.raises(UserError, match="decoder is given, and n_layers, which is one of its fields"):
        preset("gpt2", decoder=PRESETS["gpt2"].decoder, n_layers=2)
    assert preset("bahdanau", hidden_size=32, src_vocab_size=70).source_vocab_size == 70
    with pytest.raises(TypeError, match=r"RecurrentConfig has no argument 'n_labels'"):
        preset("luong", n_labels=3)
    with pytest.raises(TypeError, match=r"TransformerConfig has no argument 'd_modle': did you mean d_model\?"):
        preset("gpt2", d_modle=3)


def test_every_other_name_of_a_preset_is_one() -> None:
    every = PRESETS | RECURRENT_PRESETS
    for name, same in SAME_PRESET.items():
        assert name not in every and preset(name) == every[same]
    assert preset("seq2seq").attention == NoAttention()
    assert isinstance(preset("bahdanau").attention, AttendBefore) and isinstance(preset("luong").attention, AttendAfter)
