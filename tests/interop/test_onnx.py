"""ONNX graphs of every kind of model give glassformer's logits, also for shapes other than the traced ones."""

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

import glassformer
import late
from configs import BERT, CONFIGS, GPT, LLAMA, PAPER, RECURRENT, random_inputs, random_model
from glassformer.apps.interop.export import export
from glassformer.apps.interop.runtimes import onnx
from glassformer.common.errors import UserError
from glassformer.config import transformer as c
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import GenerationConfig, Run
from glassformer.config.schema import to_dict
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import StoredModel, read_model
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from interop.checkpoints import model_directory
from tolerances import NETWORK, assert_close

onnxruntime = late.optional("onnxruntime")
late.optional("onnxscript")


TOKENIZER = Tokenizer.train(["to be, or not to be"], vocab_size=0, scheme="char")
OTHER_TOKENIZER = Tokenizer.train(["sein oder nicht sein"], vocab_size=0, scheme="char")

ONE_LAYER = c.Stack(1, 4, d_ff=24)  # an export takes seconds per layer
ATTENTION = replace(ONE_LAYER, d_ff=0)  # and a second for the feed-forward, which other cases have
BERT_1 = replace(BERT, encoder=ONE_LAYER)
SMALLEST = replace(GPT, decoder=ATTENTION, positions=c.NoPositions())
CASES: dict[str, ModelConfig] = {
    "rotary_grouped_window": replace(
        LLAMA,
        decoder=c.Stack(1, 4, n_kv_heads=2, d_head=6, d_ff=20, window_pattern=(3,)),
        positions=c.RotaryPositions(scaling=c.YarnScaling(4.0, 16)),
        qk_norm=True,
    ),
    "classifier_last": replace(SMALLEST, positions=c.SinusoidalPositions(), head=c.SequenceHead(3, "last", "relu")),
    "masked_relative": replace(
        BERT, encoder=ATTENTION, positions=c.RelativePositions(n_buckets=8, max_distance=12), n_token_types=0
    ),
    "modernbert_tagger": replace(
        CONFIGS["modernbert"], encoder=c.Stack(2, 4, d_ff=24, window_pattern=(0, 3)), head=c.PositionHead(5, True)
    ),
    "vectors_alibi_window": replace(
        SMALLEST,
        decoder=None,
        encoder=replace(ATTENTION, window_pattern=(4,)),
        positions=c.AlibiPositions(),
        head=c.VectorHead("mean", normalize=True),
    ),
    "numbers_mean": replace(
        SMALLEST,
        decoder=None,
        encoder=ATTENTION,
        head=c.SequenceHead(1, "mean", "gelu", 2.0, 3.0, pooler_norm=True),
    ),
    "text_read_twice": replace(
        CONFIGS["bart"],
        encoder=ATTENTION,
        decoder=ONE_LAYER,
        head=c.SequenceHead(3, "last", "tanh"),
        decoder_start_id=1,
    ),
    "cross_two_vocabularies": replace(
        PAPER,
        encoder=ONE_LAYER,
        decoder=replace(ATTENTION, n_kv_heads=2),
        positions=c.LearnedPositions(),
        share_embeddings=False,
        source_vocab_size=13,
        source_max_len=14,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def one_table_of_operators() -> Iterator[None]:
    """Let PyTorch make its table of operators of ONNX once: it takes a second, and is equal for every graph."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield


def stored(config: ModelConfig, **others: Any) -> StoredModel:
    """Return a random model in the form of a model that was read from a directory."""
    network = random_model(config, dtype=torch.float32)
    run, manifest = Run(name="tiny", model=config), Manifest("model", 0, {})
    return StoredModel(
        network, config, Tokenizers(TOKENIZER, others.pop("source", None)), GenerationConfig(), run, manifest, **others
    )


def sessions_of(folder: Path) -> dict[str, Any]:
    providers = ["CPUExecutionProvider"]
    return {path.name: onnxruntime.InferenceSession(path, providers=providers) for path in folder.glob("*.onnx")}


NAMES = {"token_ids": "input_ids", "attention_mask": "attention_mask", "token_types": "token_type_ids"}
TWO_SIDES = {"source_ids": "input_ids", "source_attention_mask": "attention_mask"}
TWO_SIDES |= {"token_ids": "decoder_input_ids", "attention_mask": "decoder_attention_mask"}


@pytest.mark.parametrize("name", CASES)
def test_the_graph_gives_the_same_logits(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = stored(CASES[name])
    lines = onnx.write_onnx(model, tmp_path)
    assert capfd.readouterr() == ("", ""), "exporters and runtimes must not print"
    is_divided = name == "cross_two_vocabularies"
    sessions = sessions_of(tmp_path)
    assert set(sessions) == ({"encoder_model.onnx", "decoder_model.onnx"} if is_divided else {"model.onnx"})
    assert lines[0].split(":")[0] in sessions and any("logits differ by " in line for line in lines)

    for n_rows, n_tokens, n_source in ((1, 1, 1), (1, 11, 2), (4, 1, 12), (3, 13, 10)):
        inputs = random_inputs(model.network, n_rows, n_tokens, n_source)
        feeds = {"token_ids": inputs.token_ids, **inputs.others}
        if name == "text_read_twice":
            feeds = {"token_ids": inputs.token_ids}
        for ids, mask in (("token_ids", "attention_mask"), ("source_ids", "source_attention_mask")):
            if ids in feeds and not (is_divided and ids == "token_ids"):
                feeds[mask] = torch.rand(feeds[ids].shape) < 0.7  # gaps, and padding on both sides
                feeds[mask][:, 0] |= ~feeds[mask].any(dim=1)
        names = TWO_SIDES if "source_ids" in feeds else NAMES
        theirs = {names[name]: x.long().numpy() for name, x in feeds.items()}
        if is_divided:
            (memory,) = sessions["encoder_model.onnx"].run(
                None, {name: theirs[name] for name in ("input_ids", "attention_mask")}
            )
            theirs = {
                "input_ids": theirs["decoder_input_ids"],
                "encoder_attention_mask": theirs["attention_mask"],
                "encoder_hidden_states": memory,
            }
        last = sessions["decoder_model.onnx" if is_divided else "model.onnx"]
        assert {x.name: x.type for x in last.get_inputs()} == {
            name: "tensor(float)" if name == "encoder_hidden_states" else "tensor(int64)" for name in theirs
        }
        found = {x.name: torch.from_numpy(y) for x, y in zip(last.get_outputs(), last.run(None, theirs), strict=True)}
        real = feeds.get("attention_mask", torch.ones(feeds["token_ids"].shape, dtype=torch.bool))
        with torch.no_grad():
            wanted, hidden = model.network(**feeds), model.network.hidden(**feeds)
        assert_close(found.pop("last_hidden_state")[real], hidden[real], terms=NETWORK)
        (logits,) = found.values()
        assert set(found) == {"sentence_embedding" if name == "vectors_alibi_window" else "logits"}
        by_token = wanted.dim() == 3
        assert_close(logits[real] if by_token else logits, wanted[real] if by_token else wanted)


def test_an_export_and_a_graph_with_other_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer gives equal ids; the folder has names of labels; the graph has its configuration and no paths.

    A second export, of other weights, gets this graph, and refuses it.
    """
    from interop.test_card import run_card  # skips without transformers

    config = replace(SMALLEST, max_len=2, head=c.SequenceHead(2, "last"))  # only one length can be traced
    ours, out, exported, programs = tmp_path / "ours", tmp_path / "out", onnx._exported, list[Any]()

    def first_exported(graph: onnx.Graph) -> Any:
        programs.append(programs[0] if programs else exported(graph))
        return programs[0]

    monkeypatch.setattr(onnx, "_exported", first_exported)
    lines = export(model_directory(config, ours), out, "onnx").said
    model, text = read_model(ours), "to be"
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.encode(text, add_special_tokens=False).ids == model.tokenizers.target.encode(text)
    assert json.loads((out / "labels.json").read_text("utf-8")) == ["label0", "label1"]
    assert not (out / "config.json").exists() and any(line.startswith("no config.json") for line in lines)

    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    stated = json.loads(session.get_modelmeta().custom_metadata_map["config"])
    assert stated == json.loads(json.dumps(to_dict(model.config)))
    shapes = {x.name: x.shape for x in [*session.get_inputs(), *session.get_outputs()]}
    row = ["batch_size", "sequence_length"]
    inputs, outputs = dict.fromkeys(("input_ids", "attention_mask"), row), {"logits": ["batch_size", 2]}
    assert shapes == inputs | outputs | {"last_hidden_state": [*row, 16]}
    assert str(Path(glassformer.__file__).parent).encode() not in (out / "model.onnx").read_bytes()
    run_card(out, monkeypatch)

    (tmp_path / "other").mkdir()
    other = replace(model, network=random_model(model.config, seed=1, dtype=torch.float32))
    with pytest.raises(UserError, match=r"the logits of onnxruntime \S+ differ by .*nothing was exported"):
        onnx.write_onnx(other, tmp_path / "other")
    assert len(programs) == 2


def test_transformers_reads_the_files_beside_the_graphs(tmp_path: Path) -> None:
    """Its tokenizer writes the inputs of the graph."""
    transformers = pytest.importorskip("transformers")
    model = stored(replace(BERT_1, pad_id=0, head=c.SequenceHead(2, pooler="tanh")), labels=("no", "yes"))
    onnx._write_settings(model, tmp_path)
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(read).__name__ == "BertConfig" and read.id2label == {0: "no", 1: "yes"}
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path)(["to be", "not"], padding=True, return_tensors="np")
    (graph,) = onnx.graphs_of(model.network)
    assert encoded.keys() == graph.inputs.keys() and {x.dtype.name for x in encoded.values()} == {"int64"}


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="max_len: expected at least 2"):
        onnx.write_onnx(stored(replace(SMALLEST, max_len=1)), tmp_path)
    with pytest.raises(UserError, match="the ONNX export has no recurrent encoder-decoder: use the model with"):
        onnx.write_onnx(stored(next(iter(RECURRENT.values()))), tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"package onnxruntime: pip install 'glassformer\[export\]'"):
        onnx.write_onnx(stored(SMALLEST), tmp_path)
    assert not list(tmp_path.iterdir())
