"""Every document begins with the start token that generation and scores use, for every arrangement and tokenizer."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer import api
from glassformer.config.run import ExampleRows, PackedRows, Run, TextData, TokenizerConfig, WindowRows
from glassformer.config.train import AdamWConfig, TrainConfig
from glassformer.config.transformer import RotaryPositions, Stack, TransformerConfig
from glassformer.data import tokens as token_files
from glassformer.data.batching import Epochs, Packed, Windows, evaluation_windows
from glassformer.data.corpus import Corpus
from glassformer.data.tokens import TokenCache, TokenFile, encode_text, prepare
from glassformer.model import Model
from glassformer.objectives.causal import CausalObjective
from glassformer.tasks.language_modeling import TASK
from glassformer.tasks.preparation import token_cache
from glassformer.tasks.requirements import data_of
from glassformer.tokenization.tokenizer import Tokenizer
from runs import text_corpus

ARRANGEMENTS = {"windows": WindowRows(), "examples": ExampleRows(), "packed": PackedRows()}
SPECIAL = {"a separate start token": ("[PAD]", "[BOS]", "[EOS]"), "the end token": ("[EOS]",)}
MODEL = TransformerConfig(decoder=Stack(1, 2, d_ff=64), d_model=32, max_len=24, positions=RotaryPositions())
FIRST = "alpha"


def documents(n: int = 150) -> list[str]:
    rng = random.Random(5)
    words = ["".join(rng.choices("bcdefg", k=rng.randint(1, 4))) for _ in range(20)] + ["é", "日本"]
    return [" ".join([FIRST, *rng.choices(words, k=rng.randint(0, 12))]) for _ in range(n)]


def run_on(path: Path, packing: Any, special: tuple[str, ...]) -> Run:
    return Run(
        name="beginnings",
        model=MODEL,
        tokenizer=TokenizerConfig(vocab_size=320, special_tokens=special),
        data=TextData(path=str(path), packing=packing, cache_dir=str(path.parent / "cache")),
        train=TrainConfig(max_steps=80, batch_size=16, optimizer=AdamWConfig(learning_rate=1e-2), device="cpu"),
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("beginnings") / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents()), "utf-8")
    return path


@pytest.fixture(scope="module", params=[(a, s) for a in ARRANGEMENTS for s in SPECIAL], ids=" starts with ".join)
def model(request: Any, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    packing, special = request.param
    run = run_on(corpus, ARRANGEMENTS[packing], SPECIAL[special])
    folder = tmp_path_factory.mktemp("run") / "model"
    api.train(run, folder)
    return api.load(folder)


def test_the_first_word_of_every_document_is_predicted_and_generated(model: Model) -> None:
    tokenizer = model.tokenizer
    start = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    assert model.network.config.decoder_start_id == start
    score = model.score(FIRST)
    assert score.n_tokens == len(tokenizer.encode(FIRST)) and score.n_bytes == len(FIRST)
    assert score.log_prob > -0.1
    assert model.generate("", temperature=0.0, max_new_tokens=8).startswith(FIRST)


def test_bits_per_byte_count_every_byte_of_the_validation_text_once(model: Model) -> None:
    """The value is equal for every arrangement and tokenizer: each token is a target, and the divisor is the text."""
    report = model.evaluate()
    corpus = Corpus(data_of(model.run, TextData))
    texts = [piece.text for piece in corpus.pieces("valid")]
    assert report.n_tokens == sum(len(model.tokenizer.encode(text)) + 1 for text in texts), "one end token per text"
    assert report.bits_per_byte is not None
    n_bytes = report.loss * report.n_tokens / np.log(2) / report.bits_per_byte
    assert n_bytes == pytest.approx(sum(len(text.encode()) for text in texts))


@pytest.mark.parametrize("scheme", ["byte", "char", "word", "whitespace"])
@pytest.mark.parametrize("special", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("n", [2, 3, 20])
def test_every_arrangement_has_the_same_targets(scheme: Any, special: tuple[str, ...], n: int) -> None:
    """The targets are every token and one end token per text, for every context length, and no start token."""
    texts = documents(n)
    tokenizer = Tokenizer.train(texts, vocab_size=0, scheme=scheme, special_tokens=("[UNK]", *special))
    start = tokenizer.start_id
    tokens = encode_text(tokenizer, texts, start_id=start)
    expected = sorted(i for text in texts for i in [*tokenizer.encode(text), tokenizer.eos_id])
    objective = CausalObjective(start_id=None if start == tokenizer.eos_id else start)
    for context in (3, 7, 50):
        packed = Packed(tokens, context, 1, seed=0)
        reported = {
            "windows": evaluation_windows(tokens, context, 4),
            "documents": evaluation_windows(tokens, context, 4, separates_documents=True),
            "packed": [[packed.row(i) for i in range(packed.n_rows)]],
        }
        for name, batches in reported.items():
            labels = [objective.collate(rows, np.random.default_rng(0)).labels for rows in batches]
            found = sorted(i for label in labels for i in label[label != -100].tolist())
            assert found == expected, (name, context)


def test_every_document_begins_with_its_start_token() -> None:
    texts = documents(30)
    for special in SPECIAL.values():
        tokenizer = Tokenizer.train(texts, vocab_size=320, special_tokens=special)
        start, end = tokenizer.start_id, tokenizer.eos_id
        tokens = encode_text(tokenizer, texts, start_id=start)
        rows = [[start, *tokenizer.encode(text), end] for text in texts]
        places = zip(tokens.document_starts, tokens.document_lengths, strict=True)
        assert [tokens.ids[begin : begin + n].tolist() for begin, n in places] == rows
        joined = [i for row in rows for i in row]
        if start == end:  # one token between two documents
            joined = [i for i, after in pairwise([*joined, -1]) if (i, after) != (end, start)]
        assert tokens.ids.tolist() == joined
        examples = Epochs(tokens, 50, len(texts), seed=0).batch(0)
        assert sorted(example.token_ids.tolist() for example in examples) == sorted(rows)
        packed = [row for step in range(40) for row in Packed(tokens, 60, 1, seed=0).batch(step)]
        for example in packed:
            assert example.document_ids is not None
            begins = np.flatnonzero(np.diff(example.document_ids[example.document_ids >= 0], prepend=-1))
            assert (example.token_ids[begins] == start).all()
        assert all(len(example.token_ids) == 11 for example in Windows(tokens, 10, 5, seed=0).batch(0))


def test_bytes_without_a_prediction_do_not_count(corpus: Path) -> None:
    """Without a start token the first token of a row's document, or of the single stream, is only context."""
    texts = ["日本 abc", "é abc def", "abc"]
    tokenizer = Tokenizer.train(texts, vocab_size=0, scheme="byte", special_tokens=("[EOS]",))
    tokens: TokenFile = encode_text(tokenizer, texts)
    n_bytes = sum(len(text.encode()) for text in texts)
    assert tokens.n_bytes == n_bytes
    for packing, left_out in ((WindowRows(), 1), (ExampleRows(), 3), (PackedRows(), 3)):
        run = run_on(corpus, packing, ("[EOS]",))
        assert TASK.predicted_bytes(run, tokenizer, tokens) == n_bytes - left_out
    started = encode_text(tokenizer, texts, start_id=tokenizer.start_id)
    run = run_on(corpus, PackedRows(), ("[EOS]",))
    assert TASK.predicted_bytes(run, tokenizer, started) == n_bytes


def test_a_resumed_run_keeps_its_start_token(corpus: Path, tmp_path: Path) -> None:
    """A run directory without a recorded start token was trained without one: its text is read as before."""
    run = run_on(corpus, ExampleRows(), SPECIAL["a separate start token"])
    run = replace(run, train=replace(run.train, max_steps=2))
    outcome = api.train(run, tmp_path / "run")
    assert outcome.run.model.decoder_start_id == api.load(tmp_path / "run").tokenizer.bos_id
    old = replace(outcome.run, model=replace(outcome.run.model, decoder_start_id=None))
    tokenizer = api.load(tmp_path / "run").tokenizer
    data = data_of(old, TextData)
    text, cache = Corpus(data), token_cache(data)
    without, with_start = (TASK.tokens(one, tokenizer, text, cache) for one in (old, outcome.run))
    assert tokenizer.bos_id not in without.train.ids
    assert (with_start.train.ids == tokenizer.bos_id).sum() == with_start.train.n_documents
    assert with_start.folder != without.folder


@pytest.mark.parametrize("special", SPECIAL.values(), ids=SPECIAL)
def test_a_split_document_has_no_start_in_validation_and_no_end_in_training(
    special: tuple[str, ...], tmp_path: Path
) -> None:
    """A token that both ends and starts a text is still between all documents."""
    long = "\n\n".join(documents(40))
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [long, "beta", "gamma delta"]), "utf-8")
    corpus = text_corpus(path, valid_fraction=0.3)
    assert corpus.plan.cut, "the long document is in both splits"
    tokenizer = Tokenizer.train([long], vocab_size=320, special_tokens=special)
    splits = prepare(corpus, tokenizer, TokenCache(tmp_path / "cache"), start_id=tokenizer.start_id)
    start, end, is_shared = tokenizer.start_id, tokenizer.eos_id, tokenizer.bos_id is None
    train, valid = splits.train.ids.tolist(), splits.valid.ids.tolist()
    assert valid[0] != start and valid[-1] == end, "validation begins inside the long document"
    n_valid, n_train = splits.valid.n_documents, splits.train.n_documents
    assert n_valid + n_train == 4, "the long document counts in both splits"
    assert valid.count(start) == (n_valid if is_shared else n_valid - 1) and valid.count(end) == n_valid
    assert train.count(start) == n_train + is_shared and train.count(end) == (n_train + 1 if is_shared else n_train - 1)
    assert long.endswith(tokenizer.decode(valid[: splits.valid.document_lengths[0]]))
    run = run_on(path, PackedRows(), special)
    first = len(tokenizer.pieces[valid[0]])
    assert TASK.predicted_bytes(run, tokenizer, splits.valid) == splits.valid.n_bytes - first


@pytest.mark.parametrize("special", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("n_characters", [1, 30, 300])
def test_the_tokens_do_not_depend_on_the_batches_of_the_text(
    n_characters: int, special: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that begins a batch has the start token that ends the document before it, if one token is both."""
    texts = documents(30)
    tokenizer = Tokenizer.train(texts, vocab_size=320, special_tokens=special)
    expected = encode_text(tokenizer, texts, start_id=tokenizer.start_id)
    monkeypatch.setattr(token_files, "BATCH_CHARACTERS", n_characters)
    found = encode_text(tokenizer, texts, start_id=tokenizer.start_id)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.document_starts.tolist() == expected.document_starts.tolist()
