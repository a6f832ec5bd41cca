"""Recurrent models in every use: padded, step by step, with a tap, in training, when they are built."""

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from configs import RECURRENT, Recorder, bytes_of, random_ids, random_inputs, random_model
from glassformer.config.recurrent import AttendAfter, AttendBefore, NoAttention, RecurrentConfig, Score
from glassformer.models.build import build_model
from glassformer.nn import recurrence
from glassformer.nn.kernels import processor
from tolerances import assert_close, is_close, sampled, within

EVERY = pytest.mark.parametrize("name", RECURRENT)
LOOKING = [name for name, config in RECURRENT.items() if not isinstance(config.attention, NoAttention)]
AT_ONCE = [name for name in RECURRENT if not build_model(RECURRENT[name]).decoder.steps_alone]
B, T, S = 3, 6, 5
MASK = torch.tensor([[True] * T, [False, False, True, True, True, True], [True, False, True, True, False, False]])
SOURCE_MASK = torch.tensor([[True] * S, [True, True, False, False, False], [False, True, False, True, True]])


def close(ours: Tensor, expected: Tensor) -> None:
    """Check that two tensors are equal up to the rounding of float64."""
    assert_close(ours, expected)


@EVERY
def test_gradients_reach_only_the_past_and_the_source_of_the_row(name: str) -> None:
    model, leaves = random_model(name), {}

    def leaf(stack: str) -> object:
        return lambda x: leaves.setdefault(stack, x.detach().requires_grad_())

    inputs = random_inputs(model)
    tap = Recorder({f"{stack}.embeddings": leaf(stack) for stack in ("encoder", "decoder")})
    model(inputs.token_ids, **inputs.others, tap=tap)[0, 4].cos().sum().backward()
    reached = {stack: x.grad.abs().amax(dim=2) > 0 for stack, x in leaves.items()}
    assert reached["decoder"].tolist() == [[t <= 4 for t in range(9)], [False] * 9]
    assert reached["encoder"].tolist() == [[True] * 7, [False] * 7]


@EVERY
@pytest.mark.parametrize("tapped", [False, True])
def test_padding_anywhere_changes_nothing(name: str, tapped: bool) -> None:
    """One batch has padding left, right and inside, in target and source; later tokens change nothing."""
    model = random_model(name)
    inputs = random_inputs(model, B, T, S)
    token_ids, source_ids = inputs.token_ids, inputs.others["source_ids"]
    tap = Recorder() if tapped else None
    logits = model(token_ids, MASK, source_ids=source_ids, source_attention_mask=SOURCE_MASK, tap=tap)
    assert logits.isfinite().all()
    for b in range(B):
        alone = model(token_ids[b : b + 1, MASK[b]], source_ids=source_ids[b : b + 1, SOURCE_MASK[b]])
        close(logits[b, MASK[b]], alone[0])
    other = torch.where(MASK, token_ids, (token_ids + 1) % 19)
    changed = torch.where(SOURCE_MASK, source_ids, (source_ids + 1) % 13)
    close(model(other, MASK, source_ids=changed, source_attention_mask=SOURCE_MASK)[MASK], logits[MASK])


@EVERY
def test_rows_of_only_padding_are_finite(name: str) -> None:
    """Source and target rows, logits and gradients; other rows do not change."""
    model = random_model(name)
    inputs = random_inputs(model, B, T, S)
    mask, source_mask = MASK.clone(), SOURCE_MASK.clone()
    mask[1], source_mask[2] = False, False
    logits = model(inputs.token_ids, mask, **inputs.others, source_attention_mask=source_mask)
    assert logits.isfinite().all()
    close(logits[0], model(inputs.token_ids, MASK, **inputs.others, source_attention_mask=SOURCE_MASK)[0])
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@EVERY
def test_the_memory_has_the_order_of_the_source(name: str) -> None:
    """In each reading direction, a state depends on its own token and on the tokens that were read before it."""
    model = random_model(name)
    source_ids = random_inputs(model, 1, T, S).others["source_ids"]
    memory = model.encode(source_ids, torch.ones_like(source_ids, dtype=torch.bool)).memory
    close(memory, model.encode(source_ids).memory)
    changed = source_ids.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 13
    differs = (model.encode(changed).memory - memory)[0].abs().amax(dim=1) > 0
    if model.config.bidirectional:
        assert differs.all()
    else:
        expected = torch.arange(S) <= 2 if model.config.reverse_source else torch.arange(S) >= 2
        assert torch.equal(differs, expected)


@EVERY
@pytest.mark.parametrize("n_prefill", [1, 4])
def test_steps_equal_the_forward_pass(name: str, n_prefill: int) -> None:
    model = random_model(name)
    inputs = random_inputs(model, B, T, S)
    source = {**inputs.others, "source_attention_mask": SOURCE_MASK}
    logits, state = model.step(inputs.token_ids[:, :n_prefill], model.start(B, T, **source))
    pieces = [logits]
    for t in range(n_prefill, T):
        assert state.lengths.tolist() == [t] * B
        logits, state = model.step(inputs.token_ids[:, t : t + 1], state)
        pieces.append(logits)
    close(torch.cat(pieces, dim=1), model(inputs.token_ids, **source))


@EVERY
def test_padding_does_not_change_the_state(name: str) -> None:
    """Prefill with padding, where one row has no token in one part; then each row continues as if alone."""
    model = random_model(name)
    inputs = random_inputs(model, B, T, S)
    state = model.start(B, T, **inputs.others)
    for begin in (0, 2):
        piece = slice(begin, begin + 2 if begin == 0 else T)
        _, state = model.step(inputs.token_ids[:, piece], state, MASK[:, piece])
    assert state.lengths.tolist() == MASK.sum(dim=1).tolist()
    logits, _ = model.step(inputs.token_ids[:, :1], state)
    for b in range(B):
        token_ids = torch.cat((inputs.token_ids[b, MASK[b]], inputs.token_ids[b, :1]))[None]
        close(logits[b, -1], model(token_ids, **inputs.rows(slice(b, b + 1)).others)[0, -1])


@EVERY
def test_select_expands_reorders_and_drops_and_keeps_the_old_state(name: str) -> None:
    model, rows = random_model(name), torch.tensor([2, 0, 0, 2])
    inputs = random_inputs(model, B, T, S)
    source = {**inputs.others, "source_attention_mask": SOURCE_MASK}
    expected = model(inputs.token_ids, **source)[:, -1]
    _, state = model.step(inputs.token_ids[:, :-1], model.start(B, T, **source))
    selected = state.select(rows)
    assert selected.lengths.tolist() == [T - 1] * 4
    for _ in range(2):  # a step makes a new state: the old one can be stepped again
        close(model.step(inputs.token_ids[rows, -1:], selected)[0][:, 0], expected[rows])
        close(model.step(inputs.token_ids[:, -1:], state)[0][:, 0], expected)
    assert bytes_of(selected) * 3 == bytes_of(state) * 4 > 0


def test_a_state_refuses_a_missing_or_unequal_source() -> None:
    model = random_model("luong")
    source_ids = random_ids(19, 2, 3)
    with pytest.raises(ValueError, match="source_ids"):
        model.start(2, 9)
    with pytest.raises(ValueError, match=r"3 rows.* 2"):
        model.start(3, 9, source_ids)


@pytest.mark.parametrize("name", AT_ONCE)
def test_the_loop_equals_the_whole_call(name: str) -> None:
    """Compare logits and every gradient; a tap makes the model use the loop."""
    results = []
    for tap in (None, Recorder()):
        model = random_model(name)
        inputs = random_inputs(model, B, T, S)
        logits = model(inputs.token_ids, MASK, **inputs.others, source_attention_mask=SOURCE_MASK, tap=tap)
        logits[MASK].square().sum().backward()
        results.append([logits[MASK], *(p.grad for p in model.parameters())])
    assert_close(*results)


class Calls(Recorder):
    """A recorder that keeps every call."""

    def __call__(self, name: str, x: Tensor) -> Tensor:
        super().__call__(name, x)
        self.seen.setdefault(f"all {self.prefix}{name}", []).append(x)  # type: ignore[arg-type,attr-defined]
        return x

    def scope(self, name: str) -> "Calls":
        inner = Calls()
        inner.seen, inner.prefix = self.seen, f"{self.prefix}{name}."
        return inner


@pytest.mark.parametrize("name", LOOKING)
def test_a_tap_receives_the_alignment_of_every_step(name: str) -> None:
    model, tap = random_model(name), Calls()
    inputs = random_inputs(model, B, T, S)
    model(inputs.token_ids, **inputs.others, source_attention_mask=SOURCE_MASK, tap=tap)
    calls = tap.seen["all decoder.cross_attn.weights"]
    assert [x.shape for x in calls] == [(B, 1, 1, S)] * T
    weights = torch.cat(calls, dim=2)
    close(weights.sum(dim=3), torch.ones(B, 1, T).double())
    assert torch.equal((weights > 0).any(dim=2)[:, 0], SOURCE_MASK)  # in the order of the source
    assert [x.shape for x in tap.seen["all decoder.hidden"]] == [(B, 1, 16)] * T
    _, state = model.step(
        inputs.token_ids[:, :-1], model.start(B, T, **inputs.others, source_attention_mask=SOURCE_MASK)
    )
    stepped = Recorder()
    model.step(inputs.token_ids[:, -1:], state, tap=stepped)
    close(stepped.seen["decoder.cross_attn.weights"], calls[-1])


@pytest.mark.parametrize("name", LOOKING)
def test_weights_that_a_tap_replaces_are_used(name: str) -> None:
    """With all weight on source position 1 in every step, only that position of the memory matters."""
    model = random_model(name)
    inputs = random_inputs(model, B, T, S)

    def only_position_1(weights: Tensor) -> Tensor:
        return torch.zeros_like(weights).index_fill(3, torch.tensor([1]), 1.0)

    replaced = model(inputs.token_ids, **inputs.others, tap=Recorder({"decoder.cross_attn.weights": only_position_1}))
    one = Recorder({"encoder.memory": lambda memory: memory[:, 1:2].expand_as(memory)})
    close(replaced, model(inputs.token_ids, **inputs.others, tap=one))
    assert not is_close(replaced, model(inputs.token_ids, **inputs.others))


@EVERY
def test_a_hidden_state_that_a_tap_replaces_is_used(name: str) -> None:
    """Zeros at every step change every position; if the head reads nothing else, the logits are 0."""
    model, tap = random_model(name), Recorder({"decoder.hidden": torch.zeros_like})
    inputs = random_inputs(model, B, T, S)
    zeroed = model(inputs.token_ids, **inputs.others, tap=tap)
    plain = model(inputs.token_ids, **inputs.others)
    assert ((zeroed - plain).abs().amax(dim=(0, 2)) > 1e-6).all()
    if isinstance(model.config.attention, NoAttention) and not model.config.attention.deep_output:
        assert not zeroed.any()  # the head has no bias


@pytest.mark.parametrize(("number", "name"), list(enumerate(RECURRENT)))
def test_training_fits_one_batch_and_changes_every_parameter(number: int, name: str) -> None:
    torch.manual_seed(0)
    autocast = number % 2 == 1
    model = build_model(replace(RECURRENT[name], layer_dropout=0.01, embedding_dropout=0.01, output_dropout=0.01))
    inputs = random_inputs(model, B, T, S)
    begin = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(28):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(inputs.token_ids[:, :-1], MASK[:, :-1], **inputs.others, source_attention_mask=SOURCE_MASK)
            loss = F.cross_entropy(logits[MASK[:, :-1]].float(), inputs.token_ids[:, 1:][MASK[:, :-1]])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1
    assert all(not torch.equal(p, before) for p, before in zip(model.parameters(), begin, strict=True))


FP16 = torch.float16
KINDS: dict[str, NoAttention | AttendBefore | AttendAfter] = {
    "none": NoAttention(),
    "none_every_step": NoAttention(context_every_step=True, deep_output=True),
    **{f"before_{score}": AttendBefore(score) for score in get_args(Score)},
    **{f"after_{score}": AttendAfter(score, input_feeding=False) for score in get_args(Score)},
    **{f"after_{score}_fed": AttendAfter(score) for score in get_args(Score)},
}


def halved(x: Any) -> Any:
    """Cast tensors, packed or not, to fp16, as autocast does for cuDNN's cells."""
    if isinstance(x, tuple) and not isinstance(x, PackedSequence):
        return tuple(map(halved, x))
    return x.to(FP16) if isinstance(x, (Tensor, PackedSequence)) else x


def cudnn_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make PyTorch's recurrent modules on the CPU return fp16, as cuDNN's do under autocast to any dtype."""
    for module in (nn.RNN, nn.GRU, nn.LSTM):

        def forward(self: Any, x: Any, states: Any = None, *, plain: Any = module.forward) -> Any:
            wraps = torch.is_autocast_enabled("cpu")
            with torch.autocast("cpu", enabled=False):
                out = plain(self, x, states)
            return halved(out) if wraps else out

        monkeypatch.setattr(module, "forward", forward)


def test_autocast_reaches_only_cells_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    has_bf16 = processor.this.packs_bfloat16
    assert recurrence._obeys_autocast("cpu") == has_bf16, "an LSTM in bf16 fails on other CPUs"
    monkeypatch.setattr(processor, "this", replace(processor.this, packs_bfloat16=True))
    assert [kind for kind in ("cpu", "cuda", "mps", "xpu") if recurrence._obeys_autocast(kind)] == ["cpu"]
    model = random_model("luong", dtype=torch.float32)
    inputs = random_inputs(model)
    monkeypatch.undo()
    with torch.autocast("cpu", torch.bfloat16):
        in_bf16 = model.encode(inputs.others["source_ids"]).memory
    assert torch.equal(in_bf16, model.encode(inputs.others["source_ids"]).memory) != has_bf16


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("kind", KINDS)
def test_bf16_never_reaches_cells_that_would_compute_in_fp16(
    kind: str, cell: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cuDNN's casts the loss and all gradients are equal to those without, and close to those in fp32."""
    monkeypatch.setattr(recurrence, "_obeys_autocast", lambda _: False)
    config = RecurrentConfig(
        cell=cell, attention=KINDS[kind], bidirectional=False, d_embedding=8, d_encoder=8, d_decoder=8, vocab_size=19
    )
    model = random_model(config, dtype=torch.float32)
    masks = {"source_attention_mask": SOURCE_MASK} if padded else {}
    inputs = random_inputs(model, B, T, S)

    def gradients(autocast: bool) -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(inputs.token_ids, MASK if padded else None, **inputs.others, **masks)
            loss = F.cross_entropy(logits.float().flatten(0, 1), inputs.token_ids.flatten())
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    exact, without = gradients(autocast=False), gradients(autocast=True)
    cudnn_under_autocast(monkeypatch)
    within = gradients(autocast=True)
    assert all(x.isfinite().all() and x.dtype == torch.float32 for x in within)
    for x, expected in zip(within, without, strict=True):
        assert torch.equal(x, expected)
    one, other = (torch.cat([x.flatten() for x in gradient]) for gradient in (within, exact))
    assert F.cosine_similarity(one, other, dim=0) > 0.99


def test_each_dropout_acts_in_training_only() -> None:
    for field in ("embedding_dropout", "layer_dropout", "output_dropout"):
        model = random_model(replace(RECURRENT["luong"], **{field: 0.5}))
        inputs = random_inputs(model)
        plain = model(inputs.token_ids, **inputs.others)
        assert torch.equal(model(inputs.token_ids, **inputs.others), plain)
        model.train()
        assert not is_close(model(inputs.token_ids, **inputs.others), plain), field


@EVERY
def test_tables_are_shared_as_configured(name: str) -> None:
    model, config = build_model(RECURRENT[name]), RECURRENT[name]
    source, target, head = model.encoder.tokens, model.decoder.tokens, model.output.proj
    assert (source.weight is target.weight) == config.share_embeddings
    assert (head.weight is target.weight) == config.tie_output
    assert source.num_embeddings == (config.source_vocab_size or 19) and target.num_embeddings == 19
    assert model.n_parameters() == sum(
        x.numel() for x in {x.data_ptr(): x for x in model.state_dict().values()}.values()
    )
    names = [n for n, _ in model.named_parameters()]
    assert len(names) == len({id(p) for p in model.parameters()})
    assert build_model(config, device="meta").n_parameters() == model.n_parameters()


def test_each_kind_of_weight_has_its_initial_distribution() -> None:
    torch.manual_seed(0)
    config = replace(RECURRENT["luong"], d_embedding=64, d_encoder=48, d_decoder=48, vocab_size=200)
    model = build_model(config)
    assert model.decoder.tokens.weight.std().item() == sampled(64**-0.5, 200 * 64)
    for gate in model.decoder.cells.weight_hh_l0.split(48):
        assert_close(gate @ gate.T, torch.eye(48))
    for matrix in (*model.decoder.cells.weight_ih_l0.split(48), model.decoder.combine.weight, model.output.proj.weight):
        bound = (6 / sum(matrix.shape)) ** 0.5
        assert 0.95 * bound < matrix.abs().max() <= bound
    for cells in (model.encoder.cells, model.decoder.cells):
        for *_, input_bias, state_bias in cells.all_weights:
            forget = torch.arange(4 * 48).div(48, rounding_mode="floor") == 1
            assert torch.equal(input_bias + state_bias, forget.float())
    assert not any(p.any() for n, p in model.named_parameters() if p.dim() == 1 and "cells" not in n)


def test_an_init_range_gives_uniform_weights() -> None:
    model = build_model(replace(RECURRENT["bahdanau"], init_range=0.08, vocab_size=200))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert 0.079 < weights.abs().max() <= 0.08
    assert weights.std().item() == sampled(0.08 / 3**0.5, len(weights))
    assert all(p.any() for p in model.parameters())


@EVERY
def test_the_initial_loss_is_near_ln_v(name: str) -> None:
    """The targets are random."""
    torch.manual_seed(0)
    widths = {"d_embedding": 64, "d_encoder": 64 if not RECURRENT[name].bidirectional else 32, "d_decoder": 64}
    model = build_model(replace(RECURRENT[name], vocab_size=300, **widths))
    inputs = random_inputs(model, 8, 16, S)
    loss = F.cross_entropy(model(inputs.token_ids, **inputs.others).flatten(0, 1), random_ids(300, 8 * 16, seed=5))
    assert loss.item() == within(math.log(300), 0.25)


def test_parameters_are_counted() -> None:
    """Bahdanau's model: tables 2·19·6; GRUs 2·3·(5·(6 + 5) + 10) and 3·(16·(6 + 10 + 16) + 32); bridge 10·16 + 16;
    attention 16·16 + 16·10 + 16; maxout 12·(16 + 6 + 10) + 12; head 19·6."""
    expected = 228 + 6 * 65 + 3 * 544 + 176 + 432 + 396 + 114
    assert build_model(RECURRENT["bahdanau"]).n_parameters() == expected
