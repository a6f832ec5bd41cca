"""A small random GPT-2 in two forms: a model of transformers and a model directory of glassformer."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from configs import randomise
from glassformer.config.run import Run
from glassformer.config.transformer import Stack
from glassformer.data.texts import read_documents
from glassformer.models.build import build_model
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import MODEL_FILES, TOKENIZER, weights_of, write_model_files
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from parity.pairs import Pairs

os.environ["HF_HUB_OFFLINE"] = "1"

MAX_LEN = 48
DOCS = next(read_documents(["builtin:python-docs"]))[20_000:60_000]


@dataclass(frozen=True)
class Twins:
    """The same model in both forms."""

    folder: Path
    theirs: nn.Module
    tokenizer: Any


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    transformers = pytest.importorskip("transformers")
    from parity.test_transformers import GPT2, GPT2_NAMES

    tokenizer = Tokenizer.train([DOCS], vocab_size=330, special_tokens=["<|endoftext|>"])
    sizes = {"n_positions": MAX_LEN, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 64}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.eos_id}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=tokenizer.vocab_size, **sizes, **ends))
    randomise(theirs)
    config = replace(GPT2, d_model=32, decoder=Stack(2, 4, d_ff=64), vocab_size=tokenizer.vocab_size, max_len=MAX_LEN)
    ours = build_model(config)
    pairs = Pairs(ours, theirs)
    for mine, other in GPT2_NAMES.items():
        for i in range(2 if "{i}" in mine else 1):
            in_blocks = "blocks" in mine and "norm" not in mine
            pairs.module(mine.format(i=i), other.format(i=i), transposed=in_blocks)
    pairs.copy()
    folder = tmp_path_factory.mktemp("twins") / "model"
    folder.mkdir()
    write_model_files(folder, weights_of(ours), Tokenizers(tokenizer), Run(name="twin", model=config))
    Manifest.of(folder, "model", 0, MODEL_FILES).write(folder)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / TOKENIZER), eos_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    return Twins(folder, theirs.eval(), fast)
