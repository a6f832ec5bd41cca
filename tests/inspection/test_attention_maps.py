"""Collected weights equal those of the forward pass, for every kind of model; alignments are part of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from configs import CONFIGS, CROSS, PAPER
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.recurrent import AttendAfter, AttendBefore, NoAttention, RecurrentConfig
from glassformer.config.run import BeamConfig, CausalConfig, MaskedConfig, Run, Seq2SeqConfig
from glassformer.inspection.attention_maps import alignment, attention_layers
from glassformer.inspection.capture import Trace, capture, capture_tensors
from glassformer.models.build import build_model
from glassformer.nn.attention import Tap, scoped
from glassformer.tasks.task import task_of
from runs import text_run_of
from tolerances import assert_close

WEIGHTS = ["*.weights"]


def collect_attention(network: nn.Module, **inputs: Tensor) -> dict[str, Tensor]:
    return capture_tensors(network, inputs, WEIGHTS)


def read_text(model: Any, text: str) -> Trace:
    return capture(model, text, names=WEIGHTS)


def read_pair(model: Any, source: str, target: str | None = None) -> Trace:
    return capture(model, source=source, target=target, names=WEIGHTS)


def ids(n_rows: int, n_tokens: int, vocab_size: int = 13) -> Tensor:
    return torch.randint(vocab_size, (n_rows, n_tokens))


@pytest.mark.parametrize("name", CROSS)
def test_all_attention_of_an_encoder_decoder_is_collected(name: str) -> None:
    config = CONFIGS[name]
    model = build_model(config)
    found = collect_attention(model, token_ids=ids(2, 5), source_ids=ids(2, 7))
    assert config.is_encoder_decoder
    assert len(found) == config.encoder.n_layers + 2 * config.decoder.n_layers
    for kind, n_queries, n_keys in (("encoder", 7, 7), ("decoder", 5, 5), ("cross", 5, 7)):
        stack = config.encoder if kind == "encoder" else config.decoder
        layers = attention_layers(found, kind)  # type: ignore[arg-type]
        assert [x.shape for x in layers] == [(2, stack.n_heads, n_queries, n_keys)] * stack.n_layers
        for weights in layers:
            assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    for weights in attention_layers(found, "decoder"):
        assert not weights.triu(1).any(), "weights of later tokens are 0"


def test_the_weights_equal_those_of_the_forward_pass() -> None:
    """Compute one head of one layer by hand: softmax of queries · keys / √width."""
    model = build_model(CONFIGS["gpt"])
    assert model.decoder is not None
    seen: dict[str, Tensor] = {}

    class Reader:
        def __call__(self, name: str, x: Tensor) -> Tensor:
            seen.setdefault(name, x)  # of the first layer
            return x

        def scope(self, name: str) -> Tap:
            return self

    token_ids = ids(1, 6)
    with torch.no_grad():
        model(token_ids, tap=Reader())
    found = collect_attention(model, token_ids=token_ids)
    query, key = seen["query"][0, 1], seen["key"][0, 1]
    scores = (query @ key.T / key.shape[-1] ** 0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    assert_close(found["decoder.blocks.0.self_attn.weights"][0, 1], scores.softmax(-1))


def test_dropout_is_off_and_the_mode_is_restored() -> None:
    config = CONFIGS["gpt"]
    model = build_model(type(config)(**{**vars(config), "residual_dropout": 0.5, "attention_dropout": 0.5})).train()
    token_ids = ids(1, 6)
    first, second = (collect_attention(model, token_ids=token_ids) for _ in range(2))
    assert model.training
    assert all(torch.equal(x, second[name]) and not x.requires_grad for name, x in first.items())


class StepByStep(nn.Module):
    """A decoder that attends once per step, as recurrent ones do."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, tap: Tap) -> None:
        of_attention = scoped(scoped(tap, "decoder"), "cross_attn")
        assert of_attention is not None
        for t in range(self.weights.shape[2]):
            of_attention("scores", self.weights[:, :, t : t + 1])
            of_attention("weights", self.weights[:, :, t : t + 1])


def test_weights_of_single_steps_are_concatenated() -> None:
    weights = torch.rand(2, 1, 4, 3).softmax(-1)
    found = collect_attention(StepByStep(weights))
    assert list(found) == ["decoder.cross_attn.weights"]
    assert_close(found["decoder.cross_attn.weights"], weights)
    assert_close(alignment(found), weights[0, 0])


@pytest.mark.parametrize("attention", [AttendBefore(), AttendBefore("scaled_dot"), AttendAfter(), AttendAfter("dot")])
def test_recurrent_models_have_an_alignment(attention: AttendBefore | AttendAfter) -> None:
    sizes: dict[str, Any] = {"d_embedding": 6, "d_encoder": 4, "d_decoder": 8, "vocab_size": 13}
    model = build_model(RecurrentConfig(attention=attention, reverse_source=True, **sizes))
    matrix = alignment(collect_attention(model, token_ids=ids(2, 5), source_ids=ids(2, 7)))
    assert matrix.shape == (5, 7)
    assert_close(matrix.sum(-1), torch.ones(5))


def test_a_model_without_attention_has_no_alignment() -> None:
    model = build_model(RecurrentConfig(attention=NoAttention(), d_embedding=4, d_encoder=4, vocab_size=13))
    with pytest.raises(UserError, match="no attention from a target to a source, so it has no alignment"):
        alignment(collect_attention(model, token_ids=ids(1, 5), source_ids=ids(1, 7)))


def test_the_layer_and_the_head_of_an_alignment() -> None:
    names = [f"decoder.blocks.{i}.cross_attn.weights" for i in range(4)]
    layers = {name: torch.rand(1, 2, 4, 5) for name in names}
    assert_close(alignment(layers), layers[names[2]][0].mean(0), msg="the last but one of four")
    assert_close(alignment(layers, layer=3, head=1), layers[names[3]][0, 1])
    for n in (1, 2, 3):
        few = {name: layers[name] for name in names[:n]}
        assert_close(alignment(few), layers[names[n - 1]][0].mean(0), msg="the last of few")
    for wrong, message in (
        ({"layer": 4}, "no layer 4: the model has 4"),
        ({"head": -1}, "no head -1: the model has 2"),
    ):
        with pytest.raises(UserError, match=message):
            alignment(layers, **wrong)


class Words:
    """A tokenizer whose words are numbers."""

    special_tokens = ()
    frames = SimpleNamespace(prompt=SimpleNamespace(before=()))

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def __len__(self) -> int:
        return 19

    def tokens(self, numbers: list[int]) -> list[str]:
        return [f"<{number}>" for number in numbers]


def handle(is_seq2seq: bool) -> Any:
    """Return the needed part of a loaded model directory: id 1 is the start token, id 2 the end token."""
    words, network = Words(), build_model(PAPER if is_seq2seq else CONFIGS["gpt"])
    translator = SimpleNamespace(
        start_id=1,
        end_id=2,
        source_max_len=network.config.encoder_max_len,
        source_ids=lambda text: [*words.encode(text), 2],
        target_ids=lambda text: [1, *words.encode(text)],
        beam=lambda settings: BeamConfig(),
        translate_ids=lambda sources, config: [[SimpleNamespace(text="7 8")]],
    )
    run = Run("mine", objective=Seq2SeqConfig() if is_seq2seq else CausalConfig())
    return SimpleNamespace(
        network=network,
        members=[network],
        tokenizer=words,
        source_tokenizer=words,
        name="mine",
        device=torch.device("cpu"),
        run=run,
        task=task_of(run),
        text_ids=words.encode,
        translator=translator,
    )


def test_a_pair_has_tokens_along_every_axis() -> None:
    reading = read_pair(handle(True), "5 6 7 8", "9 10 11")
    source, read, written = (
        ["<5>", "<6>", "<7>", "<8>", "<2>"],
        ["<1>", "<9>", "<10>", "<11>"],
        ["<9>", "<10>", "<11>", "<2>"],
    )
    assert reading.axes("encoder") == (source, source)
    assert reading.axes("decoder") == (read, read)
    assert reading.axes("cross") == (written, source), "a row is the next token"
    for kind in ("encoder", "decoder", "cross"):
        rows, columns = reading.axes(kind)  # type: ignore[arg-type]
        assert attention_layers(reading, kind)[0].shape[2:] == (len(rows), len(columns))  # type: ignore[arg-type]
    assert read_pair(handle(True), "5").written == ["<7>", "<8>", "<2>"], "the output of the model"


def test_a_text_has_tokens_along_both_axes() -> None:
    reading = read_text(handle(False), "5 6 7")
    assert reading.axes("decoder") == (["<5>", "<6>", "<7>"], ["<5>", "<6>", "<7>"])
    with pytest.raises(UserError, match="no self-attention in an encoder"):
        attention_layers(reading, "encoder")


def test_maps_of_an_encoder_include_special_tokens(tmp_path: Path) -> None:
    model = api.load(api.train(text_run_of(tmp_path, MaskedConfig(), max_steps=1), tmp_path / "run").folder)
    reading = read_text(model, "the dog")
    rows, columns = reading.axes("encoder")
    assert rows == columns and (rows[0], rows[-1]) == ("[CLS]", "[SEP]")
    (_, last) = attention_layers(reading, "encoder")
    assert last.shape == (1, 2, len(rows), len(rows))


def test_input_that_a_model_cannot_read_is_refused() -> None:
    with pytest.raises(UserError, match="mine has no source side: give one text"):
        read_pair(handle(False), "5")
    with pytest.raises(UserError, match="mine is a sequence-to-sequence model: give a source text"):
        read_text(handle(True), "5")
    long = " ".join(["5"] * 30)
    with pytest.raises(UserError, match="the text has 30 tokens and the model reads at most 24"):
        read_text(handle(False), long)
    with pytest.raises(UserError, match="the target has 31 tokens and the model reads at most 24"):
        read_pair(handle(True), "5", long)
    with pytest.raises(UserError, match="the text is empty"):
        read_text(handle(False), "")
    with pytest.raises(UserError, match="the source is empty"):
        read_pair(handle(True), " ")
