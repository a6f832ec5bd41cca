"""The doctor: calls of modules, unchanged state after a check, and reports."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from configs import RECURRENT
from doctor.others import GPT, LEN, LSTM, CachedGPT, D, V
from glassformer.apps.doctor import CHECKS, Report, Result, check, check_model, runner
from glassformer.common.errors import UserError
from glassformer.config import transformer as c
from glassformer.models.build import build_model
from glassformer.models.stacks import Encoder
from glassformer.nn.experts import Router

STACK = c.Stack(2, 4, d_ff=32)
OURS = {
    "decoder": c.TransformerConfig(decoder=STACK, d_model=32, vocab_size=V, max_len=24, pad_id=3),
    "encoder": c.TransformerConfig(encoder=STACK, d_model=32, vocab_size=V, max_len=24, residual_dropout=0.1),
    "encoder-decoder": c.TransformerConfig(
        encoder=STACK, decoder=STACK, d_model=32, vocab_size=V, source_vocab_size=V + 9, max_len=24
    ),
    "modern": c.TransformerConfig(
        decoder=c.Stack(2, 4, n_kv_heads=2, d_ff=32, window_pattern=(4, 0)),
        d_model=32,
        vocab_size=V,
        positions=c.RotaryPositions(),
        norm="rmsnorm",
        qk_norm=True,
        tie_output=False,
        init=c.FanInInit(),
    ),
    "experts": c.TransformerConfig(decoder=STACK, d_model=32, vocab_size=V, max_len=24, experts=c.Experts(4, 2)),
}


def status(report: Report) -> dict[str, str]:
    return {result.name: result.status for result in report.results}


@pytest.mark.parametrize("name", OURS)
def test_transformers_of_glassformer_pass(name: str) -> None:
    report = check_model(build_model(OURS[name]))
    assert report.ok, str(report)
    not_applicable = {n for n, s in status(report).items() if s == "not applicable"}
    assert not_applicable == {
        "decoder": {"visibility"},
        "modern": {"visibility"},
        "experts": {"visibility"},
        "encoder": {"causality", "causality-by-gradient", "padding-left", "cache", "shift"},
        "encoder-decoder": {"padding-left"},
    }.get(name)


TRAINED = {"elman", "sutskever", "bahdanau", "luong"}
"""Models that the check `learns` trains; `models/test_recurrent.py` trains all."""


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_of_glassformer_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in TRAINED:
        monkeypatch.setattr(runner, "CHECKS", [one for one in CHECKS if one.name != "learns"])
    report = check_model(build_model(RECURRENT[name]))
    assert report.ok, str(report)
    assert {n for n, s in status(report).items() if s == "not applicable"} == {"padding-left"}


def test_experts_with_room_for_a_few_tokens_of_a_batch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound of tokens per expert, a token depends on the tokens before it in the batch, also in other rows."""
    forward = Router.forward

    def bounded(self: Router, x: Tensor, real: Tensor | None = None) -> Tensor:
        weights = forward(self, x, real)
        n_before = (weights > 0).flatten(0, 1).cumsum(dim=0).view_as(weights)
        return weights.masked_fill(n_before > 4, 0.0)

    monkeypatch.setattr(Router, "forward", bounded)
    assert "batch" in check_model(build_model(OURS["experts"])).failed


@pytest.mark.parametrize("head", [c.SequenceHead(n_labels=3), c.PositionHead(n_labels=3)])
def test_a_model_of_labels_is_checked_by_its_hidden_states(
    head: c.SequenceHead | c.PositionHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build_model(c.TransformerConfig(encoder=STACK, d_model=32, vocab_size=V, head=head))
    assert check_model(network).ok
    forward = Encoder.forward
    padded = {"attention_mask": None}
    monkeypatch.setattr(Encoder, "forward", lambda self, ids, given: forward(self, ids, replace(given, **padded)))
    assert "padding-right" in {name for name, found in status(check_model(network)).items() if found == "failed"}


def test_a_layer_initialised_to_zero_hides_no_fault() -> None:
    class Peeking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.mix, self.head = nn.Embedding(V, D), nn.Linear(LEN, LEN), nn.Linear(D, V)
            nn.init.zeros_(self.mix.weight)

        def forward(self, token_ids: Tensor) -> Tensor:
            x, n = self.tokens(token_ids), token_ids.shape[1]
            return self.head(x + self.mix.weight[:n, :n] @ x)

    assert "causality" in check(Peeking(), vocab_size=V, max_len=LEN, checks=["causality"]).failed


def test_a_check_restores_the_module_and_every_generator() -> None:
    module = nn.Sequential(GPT(), nn.BatchNorm1d(LEN - 2, affine=False))
    module[0](torch.zeros(1, 2, dtype=torch.long)).sum().backward()
    module[0].ffs[0].eval()
    module[0].tokens.weight.requires_grad_(False)
    tensors = [t for p in module.parameters() for t in (p, p.grad) if t is not None] + list(module.buffers())
    before = [t.detach().clone() for t in tensors]
    versions = [t._version for t in tensors]
    modes = [m.training for m in module.modules()]
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())

    report = check(module, vocab_size=V, max_len=LEN, forward=lambda m, ids: m[0](ids), fresh=GPT_in_sequence)

    assert report.ok, str(report)
    assert status(report)["learns"] == "passed"
    assert [t._version for t in tensors] == versions
    assert all(torch.equal(t, b) for t, b in zip(tensors, before, strict=True))
    assert [m.training for m in module.modules()] == modes
    assert [p.requires_grad for p in module.parameters()].count(False) == 1
    assert not module._forward_pre_hooks
    torch_state, python_state, numpy_state = states
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert str(np.random.get_state()) == numpy_state


def GPT_in_sequence() -> nn.Module:
    return nn.Sequential(GPT())


def test_an_adapter_that_runs_the_original_is_refused() -> None:
    module = GPT()
    with pytest.raises(UserError, match="must use the module that they receive"):
        check(module, vocab_size=V, forward=lambda _, ids: module(ids))
    module(torch.zeros(1, 2, dtype=torch.long))  # the module still runs


class Wrapped(nn.Module):
    """A model with another interface."""

    def __init__(self, model: nn.Module, wrap: type) -> None:
        super().__init__()
        self.model, self.wrap = model, wrap

    def forward(self, token_ids: Tensor) -> object:
        return self.wrap(self.model(token_ids))


class Output(SimpleNamespace):
    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits=logits)


@pytest.mark.parametrize("wrap", [Output, lambda logits: (logits, None)], ids=["attribute", "tuple"])
def test_logits_are_found_in_the_output_of_a_module(wrap: type) -> None:
    assert check(Wrapped(LSTM(), wrap), vocab_size=V, checks=["causality", "batch"]).ok


@pytest.mark.parametrize(
    ("wrap", "message"),
    [(lambda logits: {"scores": logits}, "returned dict"), (lambda logits: logits[:, -1:], "every position")],
)
def test_other_outputs_are_refused_with_advice(wrap: type, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(Wrapped(LSTM(), wrap), vocab_size=V)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (nn.Linear(3, 3), {}, "could not be run on token ids"),
        (GPT(), {"kind": "encoder-decoder"}, "has no source_ids"),
        (GPT(), {"checks": ["causalty"]}, "did you mean causality"),
        (GPT(), {"max_len": 3}, "at least 6 tokens"),
        (GPT(), {"vocab_size": 2}, "at least 4 ids"),
    ],
)
def test_wrong_arguments_are_refused(module: nn.Module, arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(module, **{"vocab_size": V, **arguments})


def test_a_skipped_check_has_a_reason() -> None:
    class OneHot(LSTM):
        def forward(self, token_ids: Tensor) -> Tensor:
            x = nn.functional.one_hot(token_ids, V).to(self.tokens.weight.dtype) @ self.tokens.weight
            return self.head(self.lstm(x)[0])

    reasons = {r.name: r.detail for r in check(OneHot(), vocab_size=V).results if r.passed is None}
    assert "no nn.Embedding" in reasons["causality-by-gradient"]
    assert "no attention_mask" in reasons["padding-right"]
    assert "no start and step" in reasons["cache"]
    assert "fresh=" in reasons["loss-at-start"]
    assert "no loss was given" in reasons["shift"]


def test_a_module_with_a_fixed_dtype_is_checked_in_it() -> None:
    class Float32Only(LSTM):
        def forward(self, token_ids: Tensor) -> Tensor:
            return torch.matmul(super().forward(token_ids), torch.eye(V))

    report = check(Float32Only(), vocab_size=V, checks=["causality", "padding-right", "batch"])
    assert report.ok
    assert "float32" in report.results[0].detail


@pytest.mark.parametrize(("n_failures", "n_trainings", "ok"), [(0, 1, True), (1, 2, True), (2, 2, False)])
def test_a_lower_rate_is_tried_after_a_training_that_fails(
    n_failures: int, n_trainings: int, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []

    def lowest_loss(probe: object, rows: object, rate: float, target: float) -> float:
        rates.append(rate)
        return target + (len(rates) <= n_failures)

    monkeypatch.setattr("glassformer.apps.doctor.learning._train", lowest_loss)
    assert check(LSTM(), vocab_size=V, checks=["learns"]).ok is ok
    assert len(rates) == n_trainings and rates == sorted(set(rates), reverse=True)


def test_a_frozen_module_skips_the_training_check() -> None:
    report = check(LSTM().requires_grad_(False), vocab_size=V, checks=["learns", "accumulation"])
    assert [r.passed for r in report.results] == [None, True]


def test_unused_rows_of_table_and_head_are_no_fault() -> None:
    module = CachedGPT(n_embeddings=V + 24, n_logits=V + 24)
    report = check(module, vocab_size=V, checks=["vocabulary"])
    assert report.ok
    assert report.results[0].detail.endswith("24 spare")


@pytest.mark.parametrize("n_rows", [1, None])
def test_a_position_table_is_not_mistaken_for_the_vocabulary(n_rows: int | None) -> None:
    class ByShape(nn.Embedding):
        def forward(self, token_ids: Tensor) -> Tensor:
            return super().forward(torch.arange(token_ids.shape[1]).expand_as(token_ids)[:n_rows])

    class Positioned(LSTM):
        def __init__(self) -> None:
            super().__init__()
            self.positions = ByShape(LEN, D)

        def forward(self, token_ids: Tensor) -> Tensor:
            return self.head(self.lstm(self.tokens(token_ids) + self.positions(token_ids))[0])

    report = check(Positioned(), vocab_size=V, max_len=LEN, checks=["vocabulary", "causality-by-gradient"])
    assert report.ok, str(report)


def test_the_result_of_a_check_is_independent_of_other_checks() -> None:
    module = CachedGPT()
    everything = {r.name: r for r in check(module, vocab_size=V).results}
    for name in ("batch", "learns"):
        assert check(module, vocab_size=V, checks=[name]).results == (everything[name],)


def test_the_report_in_json_and_in_plain_text() -> None:
    report = Report((Result("a", True, "fine", "m"), Result("b", False, "bad", "why"), Result("c", None, "n/a", "m")))
    written = json.loads(json.dumps(report.to_dict()))
    assert written["ok"] is False
    assert [r["status"] for r in written["results"]] == ["passed", "failed", "not applicable"]
    assert "FAILED  b  bad\n           why\n" in str(report)


def test_every_check_has_a_unique_name_and_one_sentence() -> None:
    assert len({one.name for one in CHECKS}) == len(CHECKS)
    for one in CHECKS:
        assert one.meaning.endswith(".")
        assert one.meaning.count(". ") == 0


def test_the_size_of_the_vocabulary_is_found() -> None:
    assert check_model(GPT(), checks=["vocabulary"]).ok
    with pytest.raises(UserError, match=r"Linear has no nn\.Embedding, so its vocabulary size is unknown"):
        check_model(nn.Linear(3, 3))
