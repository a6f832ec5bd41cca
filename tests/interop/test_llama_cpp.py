"""GGUF in llama.cpp, if the package xllamacpp is installed: log p, greedy tokens and ids equal glassformer's."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch

import glassformer
import late
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.apps.interop.runtimes.gguf import FILE
from glassformer.config.transformer import (
    LinearScaling,
    Llama3Scaling,
    Stack,
    TransformerConfig,
    YarnScaling,
)
from interop.checkpoints import VOCAB, model_directory
from interop.gguf_files import rewritten
from interop.test_gguf import GPT, ROTARY, turning
from interop.test_gguf_import import TEXTS
from tokenization.test_conversations import MARKED

xllamacpp = late.optional("xllamacpp")
late.optional("gguf")

CASES: dict[str, tuple[TransformerConfig, float]] = {
    "learned": (GPT, 5e-3),  # llama.cpp's gelu is a table in float16
    "rotary": (ROTARY, 1e-4),
    "linear": (turning(LinearScaling(4.0)), 1e-4),
    "llama3": (turning(Llama3Scaling(8.0, 1.0, 4.0, 32)), 1e-4),
    "yarn": (turning(YarnScaling(4.0, 16)), 1e-4),
}
N_NEW = 6
QUESTION, ANSWER = {"role": "user", "content": " one\n<two> & 'three'"}, {"role": "assistant", "content": "Ja, größer."}
CONVERSATIONS = ([QUESTION], [{"role": "system", "content": "Be brief."}, QUESTION, ANSWER, QUESTION])


def serve(path: Path) -> Any:
    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.n_ctx, settings.n_parallel, settings.n_gpu_layers, settings.warmup = 256, 1, 0, False
    settings.verbosity, settings.use_jinja = -1, True
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(settings)


def continued(server: Any, prompt: Sequence[int], n_new: int) -> tuple[list[int], dict[int, float]]:
    """Return greedy tokens and log p at the first step; omit steps with an incomplete character."""
    asked = {"prompt": prompt, "max_tokens": n_new, "temperature": 0, "logprobs": VOCAB, "ignore_eos": True}
    found = server.handle_completions(asked | {"cache_prompt": False, "verbose": True, "return_tokens": True})
    steps = (found["choices"][0]["logprobs"] or {}).get("content")
    first = steps[0]["top_logprobs"] if steps and n_new == 1 else []
    return found["__verbose"]["tokens"], {one["id"]: one["logprob"] for one in first}


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_glassformer(tmp_path: Path, name: str) -> None:
    config, tolerance = CASES[name]
    folder = model_directory(config, tmp_path / "ours")
    export(folder, tmp_path / "out", "gguf")
    server, model = serve(tmp_path / "out" / FILE), glassformer.load(folder, device="cpu")
    draw, end = torch.Generator().manual_seed(0), model.tokenizer.eos_id
    n_compared = 0
    for _ in range(8):
        prompt = torch.randint(7, VOCAB, (12,), generator=draw).tolist()
        tokens, _ = continued(server, prompt, N_NEW)
        _, theirs = continued(server, prompt, 1)
        assert len(tokens) == N_NEW
        with torch.inference_mode():
            logits = model.network(torch.tensor([prompt + tokens]))[0, len(prompt) - 1 : -1]
        log_p = logits.log_softmax(-1)
        assert all(abs(value - float(log_p[0, i])) <= tolerance for i, value in theirs.items() if i != end)
        n_compared += len(theirs)
        log_p[:, end] = -torch.inf  # llama.cpp was asked to ignore the end token
        missed = log_p.max(-1).values - log_p[torch.arange(N_NEW), torch.tensor(tokens)]
        assert float(missed.max()) <= tolerance
    assert n_compared > 1000


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("F32", 1e-4), ("F16", 5e-3), ("BF16", 5e-2), ("Q8_0", 0.3), ("Q4_1", 0.3)]
)
def test_imported_weights(tmp_path: Path, kind: str, tolerance: float) -> None:
    """llama.cpp rounds the inputs of each product to the type, too; log p has a standard deviation of 1.25."""
    config = replace(ROTARY, decoder=Stack(2, 2, 1, d_head=16, d_ff=64), d_model=32)
    export(model_directory(config, tmp_path / "ours"), tmp_path / "out", "gguf")
    path = rewritten(tmp_path / "out" / FILE, tmp_path / FILE, {}, kind)
    import_model(path, tmp_path / "back", log=lambda text: None)
    model, server = glassformer.load(tmp_path / "back", device="cpu"), serve(path)
    prompt = torch.randint(7, VOCAB, (12,), generator=torch.Generator().manual_seed(0)).tolist()
    _, theirs = continued(server, prompt, 1)
    with torch.inference_mode():
        log_p = model.network(torch.tensor([prompt]))[0, -1].log_softmax(-1)
    end = model.tokenizer.eos_id
    differences = [abs(value - float(log_p[i])) for i, value in theirs.items() if i != end]
    assert len(differences) > 250 and max(differences) <= tolerance


def asked(server: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of an endpoint of llama.cpp's server."""
    with urlopen(Request(f"{server.listening_address}/{path}", json.dumps(body).encode())) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def ids_of(server: Any, text: str) -> list[int]:
    """Return llama.cpp's ids of a text, in which special tokens are ordinary text."""
    body = {"content": text, "add_special": True, "parse_special": False}
    found: list[int] = asked(server, "tokenize", body)["tokens"]
    return found


@pytest.mark.parametrize("name", ["chatml", "llama 3", "zephyr"])
def test_exported_templates(tmp_path: Path, name: str) -> None:
    """The server renders the template of a file that was exported after its import."""
    template = MARKED[name].replace("{% generation %}", "").replace("{% endgeneration %}", "")
    export(model_directory(GPT, tmp_path / "ours"), tmp_path / "out", "gguf")
    path = rewritten(tmp_path / "out" / FILE, tmp_path / FILE, {"tokenizer.chat_template": template})
    import_model(path, tmp_path / "back", log=lambda text: None)
    export(tmp_path / "back", tmp_path / "again", "gguf")
    encoder, server = glassformer.load(tmp_path / "back").conversation_encoder, serve(tmp_path / "again" / FILE)
    for messages in CONVERSATIONS:
        found = asked(server, "apply-template", {"messages": messages})
        assert found["prompt"] == encoder.template.render(messages, asks=True)


@pytest.mark.parametrize("split", ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken"])
def test_imported_tokenizers(tmp_path: Path, split: str) -> None:
    """The server reads a file that was exported after its import."""
    export(model_directory(GPT, tmp_path / "ours"), tmp_path / "out", "gguf")
    changes = {"tokenizer.ggml.pre": split, "tokenizer.ggml.add_bos_token": None, "tokenizer.ggml.bos_token_id": 2}
    path = rewritten(tmp_path / "out" / FILE, tmp_path / FILE, changes)
    import_model(path, tmp_path / "back", log=lambda text: None)
    export(tmp_path / "back", tmp_path / "again", "gguf")
    tokenizer, server = glassformer.load(tmp_path / "back").tokenizer, serve(tmp_path / "again" / FILE)
    for text in (*TEXTS, "[EOS] a", "a [MASK]"):
        assert tokenizer.frames.prompt.around(tokenizer.encode(text)) == ids_of(server, text), text
