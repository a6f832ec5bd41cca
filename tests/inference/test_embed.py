"""Vectors of texts: special tokens as in training, and the head's pooling, alone and in a batch."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from configs import BERT, GPT, randomise
from glassformer.common.errors import UserError
from glassformer.config.run import (
    BeamConfig,
    CausalConfig,
    ClassificationConfig,
    GenerationConfig,
    InfillingConfig,
    LabelData,
    MaskedConfig,
    NoObjective,
    ObjectiveConfig,
    Run,
    TaggingConfig,
)
from glassformer.config.transformer import (
    Head,
    PositionHead,
    SequenceHead,
    Stack,
    TokenHead,
    TransformerConfig,
    VectorHead,
)
from glassformer.data.batching import Example
from glassformer.inference.classify import described, embed
from glassformer.model import Model
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from tokenization import families
from tolerances import NETWORK, assert_close

TEXTS = ["to be", "or not to be that is", "", "question", "to be or not to be, that is the question: whether"]
POOLINGS = ("first", "last", "mean", "max")
VECTOR_HEADS = [VectorHead(pooling, pooler) for pooling, pooler in product(POOLINGS, ("none", "tanh", "relu"))]
OTHER_HEADS: list[Head] = [TokenHead(), PositionHead(5), SequenceHead(3, "first", "tanh"), SequenceHead(1, "max")]
ROWS = [Example(np.arange(3, 3 + n)) for n in (5, 1, 12, 7, 5, 2)]


def network_of(config: TransformerConfig) -> Transformer:
    network = build_model(config).eval()
    randomise(network)
    return network


def by_hand(head: Head, network: Transformer, hidden: Tensor) -> Tensor:
    """Compute the vector from the last hidden states (T, D) of one row without padding, as configured."""
    pooling = head.pooling if isinstance(head, VectorHead) else "mean"
    x = {"first": hidden[0], "last": hidden[-1], "mean": hidden.mean(dim=0), "max": hidden.amax(dim=0)}[pooling]
    if isinstance(head, VectorHead) and head.pooler != "none":
        weights: Any = network.output.pooler
        x = x @ weights.weight.T + weights.bias
        x = x.tanh() if head.pooler == "tanh" else x.clamp(min=0)
    return x


@torch.no_grad()
@pytest.mark.parametrize("base", [BERT, GPT], ids=["encoder", "decoder"])
@pytest.mark.parametrize("head", [*VECTOR_HEADS, *OTHER_HEADS], ids=str)
def test_vectors_are_pooled_as_configured(base: TransformerConfig, head: Head) -> None:
    """A padded batch, a single row, `forward` and a direct computation give the same vector."""
    network = network_of(replace(base, head=head))
    vectors = embed(network, ROWS)
    assert vectors.dtype == np.float32 and vectors.shape == (len(ROWS), 16)
    for row, vector in zip(ROWS, torch.from_numpy(vectors), strict=True):
        ids = torch.from_numpy(row.token_ids)[None]
        assert_close(vector, by_hand(head, network, network.hidden(ids)[0]), terms=NETWORK)
        assert_close(vector, torch.from_numpy(embed(network, [row]))[0], terms=NETWORK)
        if isinstance(head, VectorHead):
            assert_close(vector, network(ids)[0], terms=NETWORK)


def test_the_network_stays_in_training_mode() -> None:
    network = network_of(BERT).train()
    embed(network, ROWS)
    assert network.training


def test_no_rows_give_no_vectors() -> None:
    assert embed(network_of(BERT), []).shape == (0, 16)


# Special tokens around a text


def model_of(config: TransformerConfig, objective: ObjectiveConfig, tokenizer: Tokenizer, **changes: Any) -> Model:
    torch.manual_seed(0)
    config = replace(config, vocab_size=tokenizer.vocab_size, max_len=64)
    generation = BeamConfig() if config.is_encoder_decoder else GenerationConfig()
    run = Run(model=config, objective=objective, generation=generation, **changes)
    return Model(network_of(config), Tokenizers(tokenizer), generation, run, torch.device("cpu"))


@pytest.fixture(scope="module")
def own() -> Tokenizer:
    """A tokenizer with every special token, as after training."""
    return Tokenizer.train(TEXTS * 3, vocab_size=300)


@torch.no_grad()
@pytest.mark.parametrize("starts", [False, True], ids=["from its first token", "from a trained start token"])
def test_a_causal_model_reads_a_text_as_in_training(own: Tokenizer, starts: bool) -> None:
    """It was not trained with [CLS] and [SEP]: they are not in its ids and do not change its vectors."""
    model = model_of(replace(GPT, decoder_start_id=own.bos_id if starts else None), CausalConfig(), own)
    assert model.text_ids("to be or not") == [own.bos_id] * starts + own.encode("to be or not")
    texts = [text for text in TEXTS if text or starts]
    vectors = model.embed(texts)
    for text, vector in zip(texts, vectors, strict=True):
        assert isinstance(model.network, Transformer)
        n_before = int(starts and bool(text))
        hidden = model.network.hidden(torch.tensor([model.text_ids(text)]))[0, n_before:]
        assert_close(vector, hidden.mean(dim=0).numpy(), terms=NETWORK)


@torch.no_grad()
def test_the_mean_of_a_causal_model_excludes_tokens_before_the_text() -> None:
    """An imported tokenizer adds a start token; the model reads it, but it cannot attend to the text."""
    rust, roles = families.llama_3(TEXTS * 3)
    llama = Tokenizer.imported(rust.to_str(), roles)
    model = model_of(GPT, CausalConfig(), llama)
    ids = model.text_ids("to be")
    assert ids == [llama.vocab["<|begin_of_text|>"], *llama.encode("to be")]
    assert isinstance(model.network, Transformer)
    hidden = model.network.hidden(torch.tensor([ids]))[0]
    vectors = model.embed(["to be", "", "or not to be"])
    assert_close(vectors[0], hidden[1:].mean(dim=0).numpy(), terms=NETWORK)
    assert_close(vectors[1], hidden[0].numpy(), terms=NETWORK)


def test_an_empty_text_without_a_start_token_is_refused() -> None:
    bare = Tokenizer.train(TEXTS * 3, vocab_size=300, special_tokens=())
    with pytest.raises(UserError, match="a text has no token"):
        model_of(GPT, CausalConfig(), bare).embed(["to be", ""])


ENCODER_TASKS: dict[str, tuple[TransformerConfig, ObjectiveConfig, dict[str, Any]]] = {
    "masked": (BERT, MaskedConfig(), {}),
    "classification": (replace(BERT, head=SequenceHead(3)), ClassificationConfig(), {"data": LabelData()}),
    "classification_by_a_decoder": (
        replace(GPT, head=SequenceHead(3, "last")),
        ClassificationConfig(),
        {"data": LabelData()},
    ),
    "tagging": (replace(BERT, head=PositionHead(3)), TaggingConfig(), {"data": LabelData(outputs="tags")}),
    "vectors": (replace(BERT, head=VectorHead("first")), NoObjective(), {}),
}


@torch.no_grad()
@pytest.mark.parametrize("task", ENCODER_TASKS)
def test_other_models_include_special_tokens_in_the_mean(own: Tokenizer, task: str) -> None:
    """The mean includes [CLS] and [SEP], as in sentence-transformers, which counts every input token."""
    config, objective, changes = ENCODER_TASKS[task]
    model = model_of(config, objective, own, **changes)
    ids = model.text_ids("to be or not")
    assert ids == [own.cls_id, *own.encode("to be or not"), own.sep_id]
    assert isinstance(model.network, Transformer)
    hidden = model.network.hidden(torch.tensor([ids]))[0]
    expected = hidden[0] if task == "vectors" else hidden.mean(dim=0)
    assert_close(model.embed(["to be or not", "to"])[0], expected.numpy(), terms=NETWORK)


def test_text_ids_of_a_denoiser_are_its_encoder_ids(own: Tokenizer) -> None:
    both = replace(GPT, encoder=Stack(1, 2, d_ff=8), eos_id=own.eos_id, decoder_start_id=own.bos_id)
    model = model_of(both, InfillingConfig(), own)
    assert model.text_ids("to be") == [*own.encode("to be"), own.eos_id] == model.encode_source("to be")


def test_a_long_text_is_cut_with_a_warning(own: Tokenizer) -> None:
    messages: list[str] = []
    model = model_of(GPT, CausalConfig(), own)
    long = "to be or not " * 50
    vectors = model.embed([long, "to be"], log=messages.append)
    assert messages == ["1 of 2 texts are longer than 64 tokens and are cut"]
    kept = own.decode(own.encode(long)[:64])
    assert_close(vectors[0], model.embed([kept])[0], terms=NETWORK)


@torch.no_grad()
@pytest.mark.parametrize("pooler", ["none", "tanh", "relu", "unused"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_normalized_vectors_have_length_1(pooling: Any, pooler: Any) -> None:
    head = VectorHead(pooling, pooler, normalize=True)
    network = network_of(replace(BERT, head=head))
    vectors = embed(network, ROWS)
    for row, vector in zip(ROWS, torch.from_numpy(vectors), strict=True):
        ids = torch.from_numpy(row.token_ids)[None]
        expected = by_hand(
            replace(head, pooler="none") if pooler == "unused" else head, network, network.hidden(ids)[0]
        )
        assert_close(vector, expected / expected.norm(), terms=NETWORK)
        assert_close(vector, network(ids)[0], terms=NETWORK)


def test_texts_are_cut_at_max_tokens_of_the_head(own: Tokenizer) -> None:
    """The count includes special tokens."""
    messages: list[str] = []
    model = model_of(replace(BERT, head=VectorHead(max_tokens=7)), NoObjective(), own)
    (vector,) = model.embed(["to be or not to be, that is the question"], log=messages.append)
    assert messages == ["1 of 1 texts are longer than 7 tokens and are cut"]
    ids = [own.cls_id or 0, *own.encode("to be or not to be, that is the question")[:5], own.sep_id or 0]
    assert_close(vector, embed(model.network, [Example(np.array(ids))])[0], terms=NETWORK)
    assert model.vectors_are.endswith("over all tokens; texts are cut to 7 tokens")


@pytest.mark.parametrize("max_tokens", [-1, 25])
def test_max_tokens_outside_of_the_context_is_refused(max_tokens: int) -> None:
    with pytest.raises(UserError, match=r"max_tokens is -?\d+ and must be from 0 to model\.max_len"):
        replace(BERT, head=VectorHead(max_tokens=max_tokens))


@pytest.mark.parametrize("pooler", ["tanh", "relu"])
def test_every_pooler_that_is_applied_is_described(pooler: str) -> None:
    assert f"then a dense layer and {pooler}" in described(VectorHead("first", pooler=pooler))  # type: ignore[arg-type]
