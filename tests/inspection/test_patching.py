"""Patched runs equal runs with one replaced activation; the shares are 0 and 1 where the graph requires it."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from configs import CONFIGS, RECURRENT, random_inputs, random_model, randomise
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import InfillingConfig, MaskedConfig, ObjectiveConfig, SpansConfig
from glassformer.config.transformer import TokenHead
from glassformer.inference.fill import WritingFiller
from glassformer.inspection.ablation import Part, all_parts, changed_outputs, context_name
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.capture import capture, model_hooks
from glassformer.inspection.measures import measure_of
from glassformer.inspection.patching import (
    Patching,
    Restored,
    likely_heads,
    patch_heads,
    patch_residual,
    patching_of,
)
from glassformer.model import Model
from glassformer.tasks.reporting import Outcome
from runs import label_run, pair_run, text_run_of
from tolerances import NETWORK, assert_close, largest, near

WITH_TOKENS = [name for name, config in CONFIGS.items() if isinstance(config.head, TokenHead)]
CHANGED = 4
"""Position at which the two runs have different tokens."""


def pair_of(network: Any, position: int = -1) -> Patching:
    inputs = random_inputs(network, 1)
    clean = {"token_ids": inputs.token_ids, **inputs.others}
    corrupted = {name: x.clone() for name, x in clean.items()}
    changed = corrupted["source_ids" if "source_ids" in corrupted else "token_ids"]
    changed[0, CHANGED] = (changed[0, CHANGED] + 1) % 13
    return Patching(clean, corrupted, 3, 5, position)


@torch.no_grad()
def one_by_one(network: Any, pair: Patching, path: str) -> list[float]:
    """Patch each index of dimension 1 alone, with the tensor of the clean run."""
    kept: list[Tensor] = []
    with model_hooks(network, {path: lambda name, x: kept.append(x)}):
        clean = float(pair.metric(network(**pair.clean))[0])
    corrupted = float(pair.metric(network(**pair.corrupted))[0])
    found = []
    for i in range(kept[0].shape[1]):

        def copy(name: str, x: Tensor, i: int = i) -> Tensor:
            return torch.cat((x[:, :i], kept[0][:, i : i + 1], x[:, i + 1 :]), dim=1)

        with model_hooks(network, {path: copy}):
            found.append((float(pair.metric(network(**pair.corrupted))[0]) - corrupted) / (clean - corrupted))
    return found


def check(network: Any, pair: Patching, found: Restored, paths: list[str]) -> None:
    """Require the shares of one patch at a time; a share has the rounding errors of its logits, over the divisor."""
    assert len(found.layers) == len(found.shares) == len(paths)
    dtype, divisor = found.shares.dtype, abs(found.clean - found.corrupted)
    with torch.no_grad():
        magnitude = max(largest(network(**inputs)) for inputs in (pair.clean, pair.corrupted)) / divisor
    for row, path in zip(found.shares.tolist(), paths, strict=True):
        expected = one_by_one(network, pair, path)
        rule = {"magnitude": max(magnitude, largest(expected)), "terms": NETWORK, "dtype": dtype}
        assert row == near(expected, **rule), path
    with torch.no_grad():
        for inputs, value in ((pair.clean, found.clean), (pair.corrupted, found.corrupted)):
            logits = network(**inputs)[0, pair.position]
            assert value == pytest.approx(float(logits[pair.answer] - logits[pair.wrong]))


@pytest.mark.parametrize(("number", "name"), list(enumerate(WITH_TOKENS)))
def test_batched_patches_equal_one_at_a_time(number: int, name: str) -> None:
    """Half of the configurations are patched by position, the others by head."""
    network = random_model(name)
    config = network.config
    pair, stack = pair_of(network), "decoder" if config.decoder else "encoder"
    blocks = [f"{stack}.blocks.{i}" for i in range(config.head_stack.n_layers)]
    if number % 2:
        paths = [f"{stack}.embeddings", *[f"{block}.residual" for block in blocks]]
        check(network, pair, patch_residual(network, pair), paths)
    else:
        heads = [f"{block}.self_attn.context" for block in blocks]
        check(network, pair, patch_heads(network, pair), heads)


@pytest.mark.parametrize("max_bytes", [1, 100_000])
def test_the_batches_do_not_change_the_shares(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_model("gpt")
    pair = pair_of(network)
    whole = [patch(network, pair).shares for patch in (patch_residual, patch_heads)]
    monkeypatch.setattr(sys.modules[changed_outputs.__module__], "MAX_BYTES", max_bytes)
    for patch, shares in zip((patch_residual, patch_heads), whole, strict=True):
        assert_close(patch(network, pair).shares, shares)


@pytest.mark.parametrize("position", [-1, 6])
def test_the_shares_follow_the_graph_of_a_causal_model(position: int) -> None:
    network = random_model("gpt")
    pair = pair_of(network, position)
    found = patch_residual(network, pair)
    n, at = 9, position % 9
    assert found.layers == ["embeddings", "block 0", "block 1"] and found.shares.shape == (3, n)
    of_embeddings = torch.zeros(n)
    of_embeddings[CHANGED] = 1.0
    assert_close(found.shares[0], of_embeddings, msg="only one token differs")
    assert not found.shares[:, :CHANGED].abs().gt(1e-6).any(), "earlier positions do not read the changed token"
    assert not found.shares[:, at + 1 :].abs().gt(1e-6).any(), "the prediction does not read later positions"
    of_last = torch.zeros(n)
    of_last[at] = 1.0
    assert_close(found.shares[-1], of_last, msg="after the last block only one position is read")


def test_an_encoder_decoder_is_patched_in_each_part() -> None:
    network = random_model("paper")
    pair = pair_of(network)
    encoder = [f"encoder.blocks.{i}" for i in range(2)]
    paths = ["encoder.embeddings", *[f"{block}.residual" for block in encoder]]
    found = patch_residual(network, pair, "encoder")
    check(network, pair, found, paths)
    assert float(found.shares[0, CHANGED]) == pytest.approx(1.0)
    check(network, pair, patch_heads(network, pair, "encoder"), [f"{block}.self_attn.context" for block in encoder])
    crossed = [f"decoder.blocks.{i}.cross_attn.context" for i in range(2)]
    check(network, pair, patch_heads(network, pair, "cross"), crossed)


def test_runs_that_cannot_be_patched_are_refused() -> None:
    network = random_model("gpt")
    one, other = ({"token_ids": torch.tensor([ids])} for ids in ([3, 4, 5], [3, 4, 6]))
    with pytest.raises(UserError, match="equal shapes"):
        Patching(one, {"token_ids": torch.tensor([[3, 4]])}, 3, 5)
    with pytest.raises(UserError, match="have equal tokens"):
        Patching(one, dict(one), 3, 5)
    with pytest.raises(UserError, match="are both token 3"):
        Patching(one, other, 3, 3)
    with pytest.raises(UserError, match="both runs have the same logit difference"):
        patch_residual(network, Patching(one, other, 3, 5, position=0))
    pair = Patching(one, other, 3, 5)
    with pytest.raises(UserError, match="no stack encoder"):
        patch_residual(network, pair, "encoder")
    with pytest.raises(UserError, match="no attention heads of the kind cross"):
        patch_heads(network, pair, "cross")
    for name in ("tagger", "bahdanau"):
        for patch in (patch_residual, patch_heads):
            with pytest.raises(UserError, match="needs a Transformer with a head over tokens"):
                patch(random_model(name), pair)


def test_two_texts_of_a_trained_model(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    pair = patching_of(model, "a b", "c b", answer="a", wrong="b")
    assert model.tokenizer.tokens([pair.answer, pair.wrong]) == ["a", "b"] and pair.position == -1
    found = patch_residual(model.network, pair)
    assert found.shares.shape == (3, len(model.prompt_ids("a b")))
    assert_close(found.shares[-1, -1], torch.tensor(1.0))
    for given, message in (
        (("a b", "a b"), "the clean and the corrupted text have equal tokens"),
        (("a b", "a b c d"), r"the clean text has \d tokens and the corrupted text \d: choose words"),
        (("a b", "c b", "zqzq", "b"), r"the answer 'zqzq' has \d tokens: give one token"),
        (("a b", "c b", "", "b"), r"the answer '' has 0 tokens"),
        (("a b", "c b", "a", "a"), "the answer and the wrong answer are both 'a'"),
        (("a " * 40, "b " * 40, "a", "b"), "tokens and the model reads at most 32"),
        (("a b", "c b", "a", "b", 99), "the position is 99"),
    ):
        with pytest.raises(UserError, match=message):
            patching_of(model, *given)  # type: ignore[arg-type]


def test_the_default_answers_are_the_predictions(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    texts = [f"{one} b" for one in "acdefghij"]
    for corrupted in texts[1:]:
        best = [int(model.network(torch.tensor([model.prompt_ids(x)]))[0, -1].argmax()) for x in (texts[0], corrupted)]
        if best[0] == best[1]:
            with pytest.raises(UserError, match="the answer and the wrong answer are both"):
                patching_of(model, texts[0], corrupted)
        else:
            pair = patching_of(model, texts[0], corrupted)
            assert [pair.answer, pair.wrong] == best


def test_the_position_of_a_masked_model_is_its_mask(tmp_path: Path) -> None:
    model = api.load(api.train(text_run_of(tmp_path, MaskedConfig(), max_steps=1), tmp_path / "run").folder)
    pair = patching_of(model, "a [MASK] b", "c [MASK] b", "a", "b")
    assert pair.clean["token_ids"][0, pair.position] == model.tokenizer.mask_id
    assert float(patch_residual(model.network, pair).shares[-1, pair.position]) == near(1.0, terms=NETWORK)


def random_pairs(folder: Path, objective: ObjectiveConfig | None = None) -> Model:
    """Return an encoder-decoder with random weights: one that translates, or one that fills masks."""
    run = pair_run(folder, max_steps=1) if objective is None else text_run_of(folder, objective, max_steps=1)
    model = api.load(api.train(run, folder / "run").folder)
    randomise(model.network)
    return model


def check_stacks(model: Model, pair: Patching) -> None:
    """Require that the maps of both stacks equal patches of one position at a time."""
    stacks: tuple[Kind, Kind] = ("encoder", "decoder")
    for stack in stacks:
        found = patch_residual(model.network, pair, stack)
        n = len(found.layers) - 1
        paths = [f"{stack}.embeddings", *[f"{stack}.blocks.{i}.residual" for i in range(n)]]
        check(model.network, pair, found, paths)
        assert found.columns == pair.labels(stack) and len(found.columns) == found.shares.shape[1]


def test_two_sources_share_the_output_before_it_differs(tmp_path: Path) -> None:
    model = random_pairs(tmp_path)
    sources = ["red dog sees", "red cat sees"]
    pair = patching_of(model, *sources)
    prefix = pair.clean["token_ids"][0].tolist()
    assert torch.equal(pair.corrupted["token_ids"], pair.clean["token_ids"]) and prefix[0] == model.translator.start_id
    for source, run, following in zip(sources, (pair.clean, pair.corrupted), (pair.answer, pair.wrong), strict=True):
        assert run["source_ids"][0].tolist() == model.encode_source(source)
        written = [*model.encode_target(model.translate(source)), model.translator.end_id]
        assert written[: len(prefix) + 1] == [*prefix, following]
    assert pair.answer != pair.wrong
    assert pair.labels("encoder")[:3] == ["red</w>", "dog</w>/cat</w>", "sees</w>"]
    assert pair.labels("decoder") == model.tokenizer.tokens(prefix)
    check_stacks(model, pair)
    shares = patch_residual(model.network, pair, "encoder").shares
    assert float(shares[0, 1]) == near(1.0, terms=NETWORK), "only this token of the source differs"
    assert not patch_residual(model.network, pair, "decoder").shares[0].any(), "the prefixes are equal"


def test_two_sources_with_a_given_target(tmp_path: Path) -> None:
    model = random_pairs(tmp_path)
    target, sources = "hund rot", ("red dog sees", "red cat sees")
    pair = patching_of(model, *sources, "hund", "katze", target=target)
    assert pair.clean["token_ids"][0].tolist() == model.encode_target(target) and pair.position == -1
    assert model.tokenizer.tokens([pair.answer, pair.wrong]) == ["hund</w>", "katze</w>"]
    check_stacks(model, pair)
    with torch.no_grad():
        best = [int(model.network(**run)[0, -1].argmax()) for run in (pair.clean, pair.corrupted)]
    if best[0] == best[1]:
        with pytest.raises(UserError, match="the answer and the wrong answer are both"):
            patching_of(model, *sources, target=target)
    else:
        by_default = patching_of(model, *sources, target=target)
        assert [by_default.answer, by_default.wrong] == best


@pytest.mark.parametrize("objective", [InfillingConfig(), SpansConfig()], ids=lambda x: x.kind)
def test_a_denoising_model_is_patched_at_sources_with_masks(tmp_path: Path, objective: ObjectiveConfig) -> None:
    model = random_pairs(tmp_path, objective)
    pair = patching_of(model, "a [MASK] b", "c [MASK] b", "a", "b", target="a")
    source = pair.clean["source_ids"][0].tolist()
    assert isinstance(model.filler, WritingFiller)
    assert [*model.filler.sentinel_ids, model.tokenizer.mask_id][0] in source
    check_stacks(model, pair)


def test_sources_that_cannot_be_patched_are_refused(tmp_path: Path) -> None:
    model = api.load(api.train(pair_run(tmp_path, max_steps=1), tmp_path / "run").folder)
    for given, message in (
        (("the dog", "the cat"), "the model writes the same target for both sources: give a target prefix"),
        (("the dog", "the dog"), "the clean and the corrupted source have equal tokens"),
        (("the dog", "dog"), r"the clean source has \d tokens and the corrupted source \d: choose words"),
        (("", "dog"), "the source is empty"),
    ):
        with pytest.raises(UserError, match=message):
            patching_of(model, *given)


def test_models_without_a_residual_stream_over_tokens_are_refused(tmp_path: Path, trained: Outcome) -> None:
    (tmp_path / "recurrent").mkdir()
    recurrent = pair_run(tmp_path / "recurrent", model=replace(RECURRENT["bahdanau"], vocab_size=0), max_steps=1)
    for name, run, message in (
        ("recurrent", recurrent, "this model is recurrent and has no residual stream"),
        ("classifier", label_run(tmp_path, max_steps=1), "this model predicts labels or vectors"),
    ):
        model = api.load(api.train(run, tmp_path / f"{name}-run").folder)
        with pytest.raises(UserError, match=message):
            patching_of(model, "the dog", "the cat")
    with pytest.raises(UserError, match="has no target side"):
        patching_of(glassformer.load(trained.folder), "a b", "c b", "a", "b", target="a")


def test_a_masked_text_needs_a_mask(tmp_path: Path) -> None:
    model = api.load(api.train(text_run_of(tmp_path, MaskedConfig(), max_steps=1), tmp_path / "run").folder)
    with pytest.raises(UserError, match=r"has no \[MASK\] to fill"):
        patching_of(model, "a b", "c b", "a", "b")


def test_the_likely_heads_begin_with_the_largest_product_of_context_and_gradient(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    inputs = capture(model, "ab ab ab").inputs
    measure = measure_of(model, inputs)
    heads = likely_heads(model.network, inputs, measure)
    assert sorted(map(str, heads)) == sorted(str(part) for part in all_parts(model.network) if part.form == "head")

    def loss_with(part: Part, scale: float) -> float:
        """Return the measure with the context of a head at another size."""
        path, at = context_name(model.network, part.kind, part.layer), torch.arange(4) == (part.head or 0)

        def scaled(name: str, x: Tensor) -> Tensor:
            return x * torch.where(at[: x.shape[1], None, None], scale, 1.0)

        with torch.no_grad(), model_hooks(model, {path: scaled}):
            return float(measure(model.network(**inputs))[0])

    steps = [abs(loss_with(part, 1.01) - loss_with(part, 0.99)) for part in heads]  # 0.02 times the estimate
    assert (steps.index(max(steps)), steps.index(min(steps))) == (0, len(steps) - 1)
