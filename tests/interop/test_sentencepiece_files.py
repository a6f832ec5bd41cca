"""OPUS-MT's folders: SentencePiece files and a table of ids, against transformers' MarianTokenizer."""

import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
import late
from glassformer import api
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.apps.interop.vocabulary_files import read_pair
from glassformer.common.errors import UserError
from glassformer.config.run import InitConfig, TokenizerConfig
from interop.checkpoints import randomise
from interop.test_marian import marian
from runs import pair_run

transformers = late.optional("transformers")
sentencepiece = late.optional("sentencepiece")
late.optional("google.protobuf")

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüßéABCDE.,!?'\"0123456789日本語русскийελλά"
DRAWN = [*LETTERS, "ﬁ", "１", "Ⅷ", "½", "\t", "\u3000", "\u00a0", "  ", "e\u0301", "🙂", "क", "\u200b", "«", "▁"]


def words(seed: int, n: int) -> list[str]:
    rng = random.Random(seed)
    syllables = ["".join(rng.choices(LETTERS, k=rng.randint(1, 3))) for _ in range(60)]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(n)]


def lines(n: int, seed: int) -> list[str]:
    rng, vocabulary = random.Random(seed), words(0, 200)
    return [" ".join(rng.choices(vocabulary, k=rng.randint(1, 12))) for _ in range(n)]


def learn(folder: Path, side: str, texts: list[str], **options: Any) -> None:
    (folder / "text").write_text("\n".join(texts))
    given = {"vocab_size": 300, "hard_vocab_limit": False, "character_coverage": 1.0, "num_threads": 1} | options
    given |= {"input": str(folder / "text"), "model_prefix": str(folder / side), "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(**given)
    (folder / f"{side}.model").rename(folder / f"{side}.spm")


def pieces(folder: Path, side: str) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
    return [model.id_to_piece(i) for i in range(model.get_piece_size())]


def write_table(folder: Path, ignore_tensors: int = 0) -> int:
    """Write `vocab.json` like OPUS-MT: the end token first, the padding last."""
    plain = dict.fromkeys(piece for side in ("source", "target") for piece in pieces(folder, side))
    names = [piece for piece in plain if piece not in ("<s>", "</s>", "<unk>")]
    names = ["</s>", "<unk>", *names[: len(names) - ignore_tensors], ">>fra<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
    return len(names)


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opus")
    letters = [" ".join(LETTERS)]
    learn(folder, "source", letters + lines(400, seed=1))
    learn(folder, "target", letters + lines(300, seed=2)[::-1], vocab_size=250)
    write_table(folder)
    return folder


def drawn(n: int) -> list[str]:
    rng, known = random.Random(3), lines(50, seed=4)
    mixed = ["".join(rng.choices(DRAWN, k=rng.randint(0, 20))) for _ in range(n)]
    return known + mixed + [f">>fra<< {line}" for line in known[:5]] + ["", " a", "a ", " a  b "]


def test_ids_and_texts_of_both_sides(opus: Path) -> None:
    theirs = transformers.MarianTokenizer.from_pretrained(opus)
    messages: list[str] = []
    target, source = read_pair(opus, {}, messages.append)
    assert messages == [] and target.fingerprint != source.fingerprint
    texts = drawn(1000)
    for text in texts:
        ids = source.frames.source.around(source.encode(text))
        assert ids == theirs(text)["input_ids"], text
        ids = target.frames.target.around(target.encode(text))
        assert ids == theirs(text_target=text)["input_ids"], text
        if target.unk_id not in ids:
            assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    only_of_source = next(name for name in pieces(opus, "source") if name not in pieces(opus, "target"))
    other = target.token_to_id(" " + only_of_source)
    assert other is not None, "a piece of the other side has an id but is never encoded"
    assert target.decode([other]) == theirs.decode([other]), "it must be decoded as in transformers"


def test_a_complete_folder_translates_like_transformers(opus: Path, tmp_path: Path) -> None:
    hf = tmp_path / "hf"
    shutil.copytree(opus, hf)
    n = len(json.loads((opus / "vocab.json").read_text()))
    special = {"vocab_size": n, "pad_token_id": n - 1, "decoder_start_token_id": n - 1, "eos_token_id": 0}
    theirs = marian(**special, bos_token_id=0, max_position_embeddings=64).eval()
    randomise(theirs)
    theirs.final_logits_bias[0, 0] += 3  # some outputs end early
    theirs.generation_config.bad_words_ids = [[n - 1]]
    theirs.save_pretrained(hf)
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    ours = glassformer.load(tmp_path / "ours", device="cpu")
    config = ours.network.config
    assert config.decoder_start_id == n - 1 and config.source_vocab_size == 0 and config.share_embeddings
    tokenizer = transformers.MarianTokenizer.from_pretrained(hf)
    texts = lines(20, seed=5)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    for beam in (1, 4):
        search = {"num_beams": beam, "max_new_tokens": 16} | ({"early_stopping": "never"} if beam > 1 else {})
        suppress_ids = [[n - 1], [1]]  # glassformer never generates the unknown token
        found = theirs.generate(**batch, **search, bad_words_ids=suppress_ids)
        expected = tokenizer.batch_decode(found, skip_special_tokens=True)
        assert ours.translate(texts, beam=beam, max_new_tokens=16) == expected
    assert torch.equal(ours.network.output.bias, theirs.final_logits_bias[0])
    export(tmp_path / "ours", tmp_path / "back")
    source = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    target = transformers.AutoTokenizer.from_pretrained(tmp_path / "back", subfolder="target")
    assert source(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    assert target(texts)["input_ids"] == tokenizer(text_target=texts)["input_ids"]
    run = pair_run(tmp_path, max_steps=2, eval_every=2)
    run = replace(run, tokenizer=TokenizerConfig(), init=InitConfig(path=str(tmp_path / "ours")))
    after = glassformer.load(api.train(run, tmp_path / "run").folder, device="cpu")
    assert after.network.config.decoder_start_id == n - 1 and after.network.config.share_embeddings
    assert after.translator.source_ids(texts[0]) == ours.translator.source_ids(texts[0])


def test_pieces_without_an_id_are_reported(opus: Path, tmp_path: Path) -> None:
    shutil.copytree(opus, tmp_path / "hf")
    write_table(tmp_path / "hf", ignore_tensors=3)
    messages: list[str] = []
    read_pair(tmp_path / "hf", {}, messages.append)
    assert len(messages) == 1 and "target.spm: 3 of " in messages[0] and "pieces have no id" in messages[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_type": "bpe"}, "its model_type is not Unigram"),
        ({"byte_fallback": True, "vocab_size": 500}, "byte_fallback"),
        ({"user_defined_symbols": ["<x>"]}, "user_defined_symbols"),
        ({"treat_whitespace_as_suffix": True}, "its words do not begin with spaces"),
    ],
)
def test_other_kinds_of_sentencepiece_models_are_refused(
    opus: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    shutil.copytree(opus, tmp_path / "hf")
    learn(tmp_path / "hf", "target", [" ".join(LETTERS), *lines(300, seed=2)], **options)
    with pytest.raises(UserError, match=rf"target\.spm cannot be imported: .*{words}"):
        read_pair(tmp_path / "hf", {}, print)


def test_missing_or_damaged_files_are_refused(opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = tmp_path / "hf"
    shutil.copytree(opus, hf)
    (hf / "target.spm").write_bytes(b"\xff" * 40)
    with pytest.raises(UserError, match=r"target\.spm is not a SentencePiece model"):
        read_pair(hf, {}, print)
    (hf / "target.spm").unlink()
    with pytest.raises(UserError, match=r"has no target\.spm"):
        read_pair(hf, {}, print)
    vocab = json.loads((hf / "vocab.json").read_text())
    for token, role in (("<pad>", "pad"), ("<unk>", "unk"), ("</s>", "eos")):
        renamed = {f"x{name}" if name == token else name: i for name, i in vocab.items()}
        (hf / "vocab.json").write_text(json.dumps(renamed))
        with pytest.raises(UserError, match=rf"vocab\.json has no id for {token}, the {role}_token"):
            read_pair(hf, {}, print)
    (hf / "vocab.json").write_text('{"a": 0, "b": 7}')
    with pytest.raises(UserError, match="must map its tokens to the ids 0, 1, 2"):
        read_pair(hf, {}, print)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(UserError, match="pip install sentencepiece protobuf"):
        read_pair(opus, {}, print)


def test_characters_unknown_to_one_side(opus: Path, tmp_path: Path) -> None:
    """A run of such characters is looked up in the table; a run that the table lacks is unknown."""
    hf = tmp_path / "hf"
    shutil.copytree(opus, hf)
    learn(hf, "source", [" ".join([*LETTERS, "€", "◊"]), *lines(400, seed=1)])
    write_table(hf)
    theirs = transformers.MarianTokenizer.from_pretrained(hf)
    target, _ = read_pair(hf, {}, print)
    for text in ("a€b", "€", "a◊ €b", "☃a", "☃☃ b"):
        assert target.encode(text) == theirs(text_target=text)["input_ids"][:-1], text
    assert target.unk_id not in target.encode("€◊"), "only transformers gives the unknown token"
    assert theirs(text_target="€◊")["input_ids"].count(1) == 1
