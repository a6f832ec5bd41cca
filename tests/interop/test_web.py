"""Export to a page: what is written, what is refused, and the weights of the file."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import safetensors.torch

from configs import CONFIGS, GPT, LLAMA
from glassformer.apps.inspector import web_file
from glassformer.apps.interop.export import export
from glassformer.common.errors import UserError
from glassformer.config.run import InfillingConfig
from glassformer.config.transformer import SequenceHead, Stack
from glassformer.loading import load
from glassformer.store.model_directory import read_model
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from interop.checkpoints import VOCAB, model_directory, tiny_tokenizer


def part(page: str, name: str) -> str:
    """Return the text of a script of a page that has no code."""
    found = re.search(f'<script type="[a-z/]+" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("dtype", get_args(web_file.Dtype))
def test_the_file_has_the_weights_and_the_settings(dtype: web_file.Dtype, tmp_path: Path) -> None:
    folder = model_directory(LLAMA, tmp_path / "model")
    said = export(folder, tmp_path / "page.html", "web", dtype=dtype).said
    page = (tmp_path / "page.html").read_text()
    tensors = safetensors.torch.load(base64.b64decode(part(page, "weights")))
    weights = read_model(folder).network.state_dict()
    largest = {"float32": 0.0, "bfloat16": 2**-8, "int8": 1 / 127}[dtype]
    for name, x in weights.items():
        stored = tensors[name].float()
        if f"{name}.scales" in tensors:
            stored = stored * tensors[f"{name}.scales"][:, None]
        assert (stored - x).abs().max() <= largest * x.abs().max(), name
    model = json.loads(part(page, "web-model"))
    assert model["config"]["d_model"] == LLAMA.d_model and model["facts"]["model"]["folder"] == ""
    assert str(tmp_path) not in page  # a page that others open does not name folders of this computer
    with pytest.raises(UserError, match="already exists: name another file"):
        export(folder, tmp_path / "page.html", "web")
    assert ("the rounded weights change logits by" in "\n".join(said)) == (dtype != "float32")


def test_a_setting_that_is_not_followed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(web_file, "SETTINGS", re.sub(r"\bgated_ff\b", "", web_file.SETTINGS))
    with pytest.raises(UserError, match=r"^model\.gated_ff is set, and the page does not follow this setting"):
        export(model_directory(LLAMA, tmp_path / "model"), tmp_path / "page.html", "web")
    monkeypatch.setattr(web_file, "KINDS", web_file.KINDS.replace("rotary", ""))
    assert [*web_file.unfollowed(LLAMA)] == ["positions", "gated_ff"]


def filling(folder: Path) -> Path:
    """Return a model directory of an encoder-decoder that fills masks."""
    config = replace(CONFIGS["bart"], vocab_size=VOCAB, decoder_start_id=2, eos_id=3)
    return model_directory(config, folder, objective=InfillingConfig())


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a head on two stacks": (
        lambda folder: model_directory(replace(CONFIGS["bart"], head=SequenceHead(3)), folder),
        "model.head is sequence, and on an encoder and a decoder the page has only the head tokens",
    ),
    "a denoiser": (filling, "fills masks with an encoder and a decoder, and the page does not do this"),
    "more parameters": (
        lambda folder: model_directory(replace(GPT, d_model=1024, decoder=Stack(4, 4, d_ff=4096)), folder),
        "and a page computes at most 30,000,000: use `glassformer inspect`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_models_are_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    make, words = REFUSED[case]
    folder = make(tmp_path / "model")
    with pytest.raises(UserError) as caught:
        export(folder, tmp_path / "page.html", "web")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "page.html").exists()


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    """The rules of this one split digits one by one, which no scheme of glassformer does."""
    description = json.loads(tiny_tokenizer().to_json())
    digits = {"type": "Digits", "individual_digits": True}
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, description["pre_tokenizer"]]}
    tokenizer = Tokenizer.imported(json.dumps(description), {})
    model = replace(load(model_directory(GPT, tmp_path / "model")), tokenizers=Tokenizers(tokenizer))
    with pytest.raises(UserError, match="has rules that the page does not have"):
        web_file.require_web(model)
