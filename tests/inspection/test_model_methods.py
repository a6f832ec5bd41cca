"""`Model.trace`, `attention`, `logit_lens`, `hooks` and `ablate` equal the functions of `inspection`."""

import asyncio
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer import inspection, plot
from glassformer.apps.inspector import server
from glassformer.apps.inspector.inspector import Inspector
from glassformer.common.errors import UserError
from glassformer.model import Model
from tolerances import assert_close

TEXT = "one two three"


def test_a_trace_has_the_tensors_of_capture(model: Model) -> None:
    trace, expected = model.trace(TEXT), inspection.capture(model, TEXT)
    assert trace.keys() == expected.keys() and "logits" in trace
    assert all(torch.equal(x, expected[name]) for name, x in trace.items())
    assert trace.source == model.tokenizer.tokens(model.text_ids(TEXT))
    assert set(model.trace(TEXT, names=["logits"])) == {"logits"}


def test_a_trace_releases_its_tensors_at_the_end_of_a_block(model: Model) -> None:
    with model.trace(TEXT) as trace:
        assert len(trace)
    assert not len(trace)


def test_hooks_of_a_trace_and_of_a_block_replace_tensors(model: Model) -> None:
    name = "decoder.blocks.0.self_attn.context"

    def zero(name: str, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    whole, without = model.trace(TEXT), model.trace(TEXT, hooks={name: zero})
    assert not without[name].any() and not torch.equal(whole["logits"], without["logits"])
    with model.hooks({name: zero}):
        assert torch.equal(model.trace(TEXT)["logits"], without["logits"])
    assert torch.equal(model.trace(TEXT)["logits"], whole["logits"])


def test_attention_has_weights_only(model: Model, pairs: Model) -> None:
    weights = model.attention(TEXT)
    assert weights and all(name.endswith(".weights") for name in weights)
    sums = weights["decoder.blocks.0.self_attn.weights"].sum(-1)
    assert_close(sums, torch.ones_like(sums))
    assert any(".cross_attn." in name for name in pairs.attention(source="ab"))
    with pytest.raises(UserError, match="give a source text"):
        pairs.attention("ab")


def test_the_last_row_of_the_logit_lens_is_the_prediction(model: Model) -> None:
    cells = inspection.logit_lens(model, model.trace(TEXT))
    assert torch.equal(cells.top_probabilities, model.logit_lens(TEXT).top_probabilities)
    expected = model.trace(TEXT)["logits"][0].softmax(-1).max(-1)
    assert_close(cells.top_probabilities[-1, :, 0], expected.values)
    assert cells.tokens == model.tokenizer.tokens(model.text_ids(TEXT))
    assert cells.top_tokens()[-1][0][0] == model.tokenizer.tokens([int(expected.indices[0])])[0]


def test_an_ablation_takes_one_part_or_several(model: Model) -> None:
    before = model.trace(TEXT)["logits"]
    with model.ablate("decoder.0.head.0"):
        one = model.trace(TEXT)["logits"]
    with inspection.ablate(model, [inspection.Part("decoder", 0, head=0)]):
        assert torch.equal(model.trace(TEXT)["logits"], one) and not torch.equal(one, before)
    with model.ablate(["decoder.0", "decoder.1"]):
        assert not torch.equal(model.trace(TEXT)["logits"], one)
    with pytest.raises(UserError, match=r"the model has no part decoder\.0\.head\.9"), model.ablate("decoder.0.head.9"):
        pass


def test_every_picture_of_a_model(model: Model, pairs: Model, tmp_path: Path) -> None:
    import matplotlib.figure

    figures = [
        plot.attention(model, TEXT),
        plot.attention(pairs, source="ab", layer=0, head=0),
        plot.alignment(pairs, "ab"),
        plot.positions(model),
    ]
    assert all(isinstance(figure, matplotlib.figure.Figure) for figure in figures)
    assert plot.save(figures[0], tmp_path / "a.png") == [tmp_path / "a.png"]
    with pytest.raises(UserError, match="predicts no classes"):
        plot.confusion(model)


def test_the_page_of_a_model_is_opened_from_python(model: Model, pairs: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Inspector] = []
    monkeypatch.setattr(server, "serve", lambda inspector, host, port, opens_browser: shown.append(inspector))
    model.inspect(TEXT, opens_browser=False)
    glassformer.inspect(pairs, source="ab")
    assert [inspector.examples for inspector in shown] == [[{"text": TEXT}], [{"source": "ab", "target": None}]]
    with pytest.raises(UserError, match="reads a source, and no text"):
        pairs.inspect("ab")
    with pytest.raises(UserError, match="reads a text, and no source"):
        model.inspect(source="ab")


def test_a_notebook_serves_the_page_in_the_background(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    served = threading.Event()

    def serve(inspector: Inspector, **where: object) -> None:
        assert threading.current_thread() is not threading.main_thread()
        served.set()

    async def cell() -> None:
        model.inspect(TEXT)

    monkeypatch.setattr(server, "serve", serve)
    asyncio.run(cell())
    assert served.wait(60)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("attentions", "model.attention(text)"),
        ("run_with_cache", "model.trace(text)"),
        ("plot_attention", "glassformer.plot.attention(model, text)"),
        ("encode", "model.tokenizer.encode(text)"),
        ("effects", "with model.ablate(part):"),
    ],
)
def test_a_guessed_name_leads_to_the_method(model: Model, name: str, answer: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(model, name)
    assert answer in str(raised.value)
