"""The dial `size`: one number scales a Transformer and its training; all that has no size stays."""

from dataclasses import replace

import pytest

from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.presets import preset
from glassformer.config.recipes import with_changes
from glassformer.config.run import Run
from glassformer.config.sizes import LARGEST, learning_rate, sized, width
from glassformer.config.train import MuonConfig
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.models.build import build_model

DECODER = recipes.load("python-docs")
PAIRS = recipes.load("multi30k-de-en")


def model_of(run: Run) -> TransformerConfig:
    assert isinstance(run.model, TransformerConfig)
    return run.model


@pytest.mark.parametrize("run", [DECODER, PAIRS], ids=["decoder", "encoder-decoder"])
def test_a_size_of_as_many_layers_and_the_same_width_changes_no_shape(run: Run) -> None:
    model = model_of(run)
    n_layers = max(stack.n_layers for stack in model.stacks.values())
    same = sized(run, n_layers)
    assert same.train.max_steps == run.train.max_steps and same.train.optimizer == run.train.optimizer
    assert same.train.schedule == run.train.schedule and same.data == run.data
    if model.d_model == width(n_layers):
        assert same == run


@pytest.mark.parametrize("run", [DECODER, PAIRS], ids=["decoder", "encoder-decoder"])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 12])
def test_model_batch_steps_and_rates_follow_the_rule(run: Run, size: int) -> None:
    model, found = model_of(run), sized(run, size)
    n_layers = max(stack.n_layers for stack in model.stacks.values())
    larger = model_of(found)
    assert larger.d_model == width(size) == 64 * -(-size // 2)
    for name, stack in larger.stacks.items():
        assert stack.n_layers == size and larger.d_model % stack.n_heads == 0
        assert stack.d_ff / larger.d_model == model.stacks[name].d_ff / model.d_model
    batch = [getattr(one.data, "batch_tokens", 0) or one.train.batch_size for one in (run, found)]
    assert batch[1] == round(batch[0] * size / n_layers)
    steps = run.train.max_steps * (size / n_layers) ** 2
    assert abs(found.train.max_steps / steps - 1) <= 0.05, "two digits"
    assert isinstance(found.train.optimizer, MuonConfig) == isinstance(run.train.optimizer, MuonConfig)
    assert build_model(replace(larger, vocab_size=300), "meta").n_parameters() > 0


def test_rates_fall_with_the_size() -> None:
    start = MuonConfig(learning_rate(4), adamw_learning_rate=learning_rate(4))
    for size in (1, 2, 8, 16):
        run = sized(replace(DECODER, train=replace(DECODER.train, optimizer=start)), size)
        assert isinstance(run.train.optimizer, MuonConfig)
        for rate in (run.train.optimizer.learning_rate, run.train.optimizer.adamw_learning_rate):
            assert abs(rate / learning_rate(size) - 1) <= 0.1, "both are rounded to two digits"


def test_two_stacks_of_unequal_depth_keep_their_ratio_and_groups_divide_the_heads() -> None:
    model = TransformerConfig(encoder=Stack(6, 8, d_ff=512), decoder=Stack(2, 8, n_kv_heads=2, d_ff=256), d_model=256)
    found = model_of(sized(replace(PAIRS, model=model), 12))
    assert found.encoder is not None and found.decoder is not None
    assert (found.encoder.n_layers, found.decoder.n_layers) == (12, 4)
    assert (found.encoder.d_ff, found.decoder.d_ff) == (768, 384)
    assert found.decoder.n_heads % found.decoder.n_kv_heads == 0
    build_model(replace(found, vocab_size=50), "meta")


def test_the_preset_comes_first_then_the_size_then_other_keys() -> None:
    run = with_changes(DECODER, {"d_model": 96, "size": "3", "model.preset": "gpt2"})
    model = model_of(run)
    assert model.decoder is not None and model.decoder.n_layers == 3 and model.d_model == 96
    assert model.positions == preset("gpt2").positions  # type: ignore[union-attr]
    assert with_changes(DECODER, size=6) == sized(DECODER, 6)


@pytest.mark.parametrize("wrong", [0, -1, LARGEST + 1, 2.5, True, "two", "1.0", "9" * 23])
def test_a_wrong_size_is_one_sentence(wrong: object) -> None:
    with pytest.raises(UserError, match=f"size: expected a whole number from 1 to {LARGEST}, got"):
        with_changes(DECODER, size=wrong)


def test_what_has_no_size_is_refused() -> None:
    with pytest.raises(UserError, match="only Transformers have a size"):
        sized(recipes.load("multi30k-de-en-gru"), 2)
    empty = TransformerConfig(decoder=Stack(0, 1), d_model=32)
    with pytest.raises(UserError, match="the model has no layers"):
        sized(replace(DECODER, model=empty), 2)
