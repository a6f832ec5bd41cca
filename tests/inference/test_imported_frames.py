"""Texts of an imported model have the special tokens of its tokenizer file, as input and as output."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

import glassformer
from configs import CONFIGS
from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import (
    BeamConfig,
    GenerationConfig,
    InfillingConfig,
    MaskedConfig,
    ObjectiveConfig,
    PairData,
    Run,
    Seq2SeqConfig,
    SpansConfig,
)
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.data.batching import Example
from glassformer.data.rows import encode_texts
from glassformer.inference.fill import masked_ids
from glassformer.model import Model
from glassformer.models.build import build_model
from glassformer.objectives.seq2seq import objective_of
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import weights_of, write_model_files
from glassformer.tasks.preparation import with_vocabulary
from glassformer.tokenization import Tokenizer
from glassformer.tokenization.tokenizer import Tokenizers
from glassformer.tokenization.vocabulary import sentinel_ids
from tokenization import families
from tolerances import NETWORK, near

TEXTS = ["the cat sat on the mat and the dog ran, to be or not to be. "] * 20


def imported(family: families.Family) -> Tokenizer:
    rust, roles = family
    return Tokenizer.imported(rust.to_str(), roles)


@pytest.fixture(scope="module")
def bart() -> Tokenizer:
    return imported(families.roberta(TEXTS))


@pytest.fixture(scope="module")
def t5() -> Tokenizer:
    return imported(families.t5(TEXTS))


def model_of(tokenizer: Tokenizer, objective: ObjectiveConfig, kinds: tuple[str, ...], **ids: int) -> Model:
    torch.manual_seed(0)
    stacks = {kind: Stack(1, 2, d_ff=16) for kind in kinds}
    config = TransformerConfig(d_model=8, vocab_size=tokenizer.vocab_size, max_len=64, **stacks, **ids)
    generation = BeamConfig(beam=2, max_new_tokens=6) if len(kinds) == 2 else GenerationConfig(max_new_tokens=3)
    run = Run(model=config, objective=objective, generation=generation)
    network = build_model(config).eval()
    return Model(network, Tokenizers(tokenizer), generation, run, torch.device("cpu"))


BOTH = ("encoder", "decoder")


@torch.no_grad()
def test_a_denoiser_reads_and_writes_the_start_token_of_its_file(bart: Tokenizer) -> None:
    """BART: the encoder reads <s> A </s>, the decoder </s> <s> A, and writes <s> A </s>."""
    model = model_of(bart, Seq2SeqConfig(), BOTH, decoder_start_id=2, eos_id=2)
    words = bart.encode("the cat")
    assert model.encode_source(" the cat ") == [0, *words, 2]
    assert model.encode_target("the cat") == [2, 0, *words]
    for found in model.translations(["the cat", "to be"], n_best=2):
        assert all(translation.hypothesis.ids[0] == 0 for translation in found)
    (best, *_), *_ = model.translations(["to be"], prefix="the")
    assert best.hypothesis.ids[: 1 + len(bart.encode("the"))] == [0, *bart.encode("the")]
    assert best.text.startswith("the")
    (score,) = model.score(["to be"], ["the cat"])
    source = torch.tensor([model.encode_source("to be")])
    logits = model.network(torch.tensor([[2, 0, *words]]), source_ids=source)[0]
    labels = torch.tensor([0, *words, 2])
    assert score.n_tokens == len(labels)
    expected = logits.log_softmax(-1)[torch.arange(len(labels)), labels].sum()
    assert score.log_prob == near(float(expected), terms=NETWORK)


def test_training_pairs_have_the_same_special_tokens(bart: Tokenizer, t5: Tokenizer) -> None:
    config = TransformerConfig(encoder=Stack(1, 2), decoder=Stack(1, 2), decoder_start_id=2, eos_id=2)
    example = Example(np.array([11, 12]), source_ids=np.array([13]))
    expected = {
        "bart": ([[0, 13, 2]], [[2, 0, 11, 12]], [[0, 11, 12, 2]]),
        "t5": ([[13, 1]], [[2, 11, 12]], [[11, 12, 1]]),
    }
    for name, tokenizer in (("bart", bart), ("t5", t5)):
        objective = objective_of(config, Tokenizers(tokenizer), 0.0)
        batch = objective.collate([example], np.random.default_rng(0))
        assert batch.source_ids is not None
        assert (batch.source_ids.tolist(), batch.token_ids.tolist(), batch.labels.tolist()) == expected[name]
        assert batch.n_targets == len(expected[name][2][0])


def test_a_mask_has_the_tokenizers_name_or_the_general_name(bart: Tokenizer) -> None:
    model = model_of(bart, MaskedConfig(), ("encoder",))
    ids = masked_ids(bart, "the [MASK] sat")
    assert ids == [*bart.encode("the"), bart.mask_id, *bart.encode(" sat")] == masked_ids(bart, "the <mask> sat")
    found = model.fill("the [MASK] sat on <mask>.", n=3)
    assert found == model.fill("the <mask> sat on [MASK].", n=3) and list(map(len, found.candidates)) == [3, 3]
    row = [0, *masked_ids(bart, "the [MASK] sat"), 2]
    logits = model.network(torch.tensor([row]))[0, row.index(bart.mask_id or 0)]
    logits[[bart.vocab[token] for token in bart.special_tokens]] = -torch.inf
    (candidates,) = model.fill("the [MASK] sat", n=2).candidates
    assert [c.token_id for c in candidates] == logits.topk(2).indices.tolist()
    with pytest.raises(UserError, match=r"the text has no \[MASK\]"):
        model.fill("the cat")
    writer = model_of(bart, InfillingConfig(), BOTH, decoder_start_id=2, eos_id=2)
    assert isinstance(writer.fill("the <mask> sat").text, str)


def test_spans_of_a_t5_are_filled(t5: Tokenizer) -> None:
    assert sentinel_ids(t5) == [t5.vocab[f"<extra_id_{i}>"] for i in range(5)]
    model = model_of(t5, SpansConfig(), BOTH, decoder_start_id=0, eos_id=1)
    filling = model.fill("the [MASK] sat on [MASK].")
    assert filling.candidates == [] and "extra_id" not in filling.text and "the" in filling.text


def test_a_prompt_begins_with_the_start_of_the_file(t5: Tokenizer) -> None:
    llama = imported(families.llama_3(TEXTS))
    model = model_of(llama, Run(model=CONFIGS["gpt"]).objective, ("decoder",))
    begin = llama.vocab["<|begin_of_text|>"]
    assert model.prompt_ids("the cat") == [begin, *llama.encode("the cat")] and model.prompt_ids("") == [begin]
    assert isinstance(model.generate("the cat"), str)


def test_special_tokens_of_a_prompt_are_read_on_request() -> None:
    """The ids are those of the library; a start token that the prompt has is not repeated."""
    rust, roles = families.llama_3(TEXTS)
    llama = imported((rust, roles))
    model = model_of(llama, Run(model=CONFIGS["gpt"]).objective, ("decoder",))
    start, end = "<|begin_of_text|>", "<|end_of_text|>"
    for text in ("the cat", f"the cat{end}sat", f"{end}{end}the", f" {end} the cat {start}", end, ""):
        ids = rust.encode(text).ids
        assert ids[0] == llama.vocab[start]
        for prompt in (text, start + text):
            assert model.prompt_ids(prompt, special_tokens=True) == ids
            assert model.prompt_ids(prompt) == [ids[0], *llama.encode(prompt)]
        settings = {"temperature": 0.0, "max_new_tokens": 4}
        alone = model.generate(ids, **settings)
        assert model.generate(text, special_tokens=True, **settings) == alone
        assert model.generate([text, "the"], special_tokens=True, **settings)[0] == alone
        assert "".join(model.stream(text, special_tokens=True, **settings)) == alone
    with pytest.raises(UserError, match="special_tokens: expected True or False, got 'yes'"):
        model.generate("the", special_tokens="yes")


def test_a_prompt_has_every_start_token_of_the_file() -> None:
    """Training begins a text with the last of these ids, which the configuration records; a prompt has all."""
    rust, roles = families.llama_3(TEXTS)
    begin, end = (rust.token_to_id(token) for token in ("<|begin_of_text|>", "<|end_of_text|>"))
    rust.post_processor = TemplateProcessing(
        single="<|end_of_text|> <|begin_of_text|> $A",
        special_tokens=[("<|begin_of_text|>", begin), ("<|end_of_text|>", end)],
    )
    llama = imported((rust, roles))
    model = model_of(llama, Run(model=CONFIGS["gpt"]).objective, ("decoder",), decoder_start_id=begin)
    assert llama.start_id == begin and model.prompt_ids("the cat") == [end, begin, *llama.encode("the cat")]


def test_texts_and_pairs_of_an_encoder(bart: Tokenizer) -> None:
    (one, two), n_cut = encode_texts(bart, [("the cat",), ("the cat", "sat")], 64)
    cat, sat = bart.encode_batch(["the cat", "sat"])
    assert one.token_ids.tolist() == [0, *cat, 2] and n_cut == 0
    assert two.token_ids.tolist() == [0, *cat, 2, 2, *sat, 2]
    assert two.token_types is not None and set(two.token_types.tolist()) == {0}
    (cut,), n_cut = encode_texts(bart, [("the cat", "sat on the mat")], 8)
    assert len(cut.token_ids) == 8 and n_cut == 1


def test_training_an_imported_model_keeps_its_decoder_start_id(bart: Tokenizer) -> None:
    config = TransformerConfig(encoder=Stack(1, 2), decoder=Stack(1, 2), decoder_start_id=2)
    done = with_vocabulary(config, Tokenizers(bart))
    assert (done.decoder_start_id, done.eos_id, done.bos_id, done.mask_id) == (2, 2, 0, 4)


def directory(folder: Path, config: ModelConfig, tokenizer: Tokenizer, source: Tokenizer) -> Path:
    folder.mkdir()
    run = Run(model=config, objective=Seq2SeqConfig(), data=PairData(), generation=BeamConfig())
    write_model_files(folder, weights_of(build_model(config)), Tokenizers(tokenizer, source), run)
    Manifest.of(folder, "model", 0, sorted(path.name for path in folder.iterdir())).write(folder)
    return folder


def test_two_tokenizers_may_share_one_table(tmp_path: Path, t5: Tokenizer) -> None:
    """Marian has two lists of pieces and one vocabulary of ids."""
    joint: dict[str, Any] = {"encoder": Stack(1, 2), "decoder": Stack(1, 2), "d_model": 8, "share_embeddings": True}
    ids = {"decoder_start_id": 0, "eos_id": 1}
    source = imported(families.t5([*TEXTS, "une autre langue " * 20]))
    size = max(t5.vocab_size, source.vocab_size)
    model = glassformer.load(directory(tmp_path / "a", TransformerConfig(vocab_size=size, **joint, **ids), t5, source))
    assert model.encode_source("une langue") == [*source.encode("une langue"), 1]
    assert model.source_tokenizer.roles == source.roles and model.tokenizer.to_json() == t5.to_json()
    assert source.vocab_size > t5.vocab_size
    small = TransformerConfig(vocab_size=source.vocab_size - 1, **joint, **ids)
    with pytest.raises(UserError, match="the source tokenizer has"):
        glassformer.load(directory(tmp_path / "b", small, t5, source))
