"""Greedy decoding of an exported GPT-2 with random weights: llama.cpp and CTranslate2.

The model is that of `decode_gpt2.py` with biases, which both programs need; they add 0.1 % of the weights.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch

import gpt_peers
from decode_gpt2 import bytes_read
from glassformer.apps.interop.export import export
from glassformer.apps.interop.tokenizer_files import row_names
from glassformer.config.run import CausalConfig, GenerationConfig, Run, TextData
from glassformer.store.model_directory import save_model
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from task import Task

CACHED = {"llama.cpp": 2, "ctranslate2": 4}
"""Bytes of a cached number; a weight has four."""


def exported(folder: str, sizes: dict[str, int], n_prompt: int, n_new: int) -> Task:
    """Write the model in fp32 for llama.cpp and for CTranslate2, with a prompt."""
    torch.manual_seed(0)
    shape, place = gpt_peers.Decoder(**sizes), Path(folder)
    model = gpt_peers.ours(shape, bias=True)
    tokenizer = Tokenizer.train(["ab" * 9], vocab_size=258, special_tokens=("<eos>",))
    run = Run(name="b", model=model.config, data=TextData(), objective=CausalConfig(), generation=GenerationConfig())
    save_model(place / "model", model, 0, Tokenizers(tokenizer), run, ())
    export(place / "model", place / "ct2", "ct2")
    export(place / "model", place / "gguf", "gguf")
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(1, shape.vocab_size, (n_prompt,), generator=draw).tolist()
    names = row_names(tokenizer, shape.vocab_size)
    read = {name: bytes_read(shape, 1, n_prompt, n_new, 4, size) for name, size in CACHED.items()}
    work = {"prompt": prompt, "tokens": [names[i] for i in prompt], "n_new": n_new, "bytes_read": read}
    (place / "work.json").write_text(json.dumps(work), "utf-8")
    return Task(lambda: None)


def llama_cpp(folder: str, threads: int = 0) -> Task:
    """Decode one row with llama.cpp; the cache is in float16, its default."""
    import xllamacpp

    work = json.loads((Path(folder) / "work.json").read_text("utf-8"))
    settings = xllamacpp.CommonParams()
    settings.model.path = str(Path(folder) / "gguf" / "model.gguf")
    settings.n_ctx, settings.n_parallel, settings.n_gpu_layers, settings.verbosity = 256, 1, 0, -1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads or os.cpu_count() or 1
    server = xllamacpp.Server(settings)
    asked = {"prompt": work["prompt"], "max_tokens": work["n_new"], "temperature": 0, "ignore_eos": True}
    asked |= {"cache_prompt": False, "return_tokens": True, "verbose": True}

    def decode() -> None:
        found: Any = server.handle_completions(asked)
        _require(len(found["__verbose"]["tokens"]), work["n_new"])

    return Task(decode, amount=work["n_new"], bytes_read=work["bytes_read"]["llama.cpp"])


def ctranslate2_generator(folder: str) -> Task:
    """Decode with CTranslate2's generator."""
    import ctranslate2

    work = json.loads((Path(folder) / "work.json").read_text("utf-8"))
    generator = ctranslate2.Generator(str(Path(folder) / "ct2"), device="cpu", compute_type="float32")
    n_new, rows = work["n_new"], [work["tokens"]]

    def decode() -> None:
        found = generator.generate_batch(
            rows, min_length=n_new, max_length=n_new, sampling_topk=1, include_prompt_in_result=False
        )
        _require(min(len(one.sequences_ids[0]) for one in found), n_new)

    return Task(decode, amount=n_new, bytes_read=work["bytes_read"]["ctranslate2"])


def _require(found: int, n_new: int) -> None:
    if found != n_new:
        raise RuntimeError(f"expected {n_new} new tokens, got {found}")
