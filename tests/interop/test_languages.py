"""Translators with language tokens: NLLB, mBART-50 and mBART, against the tokenizers and `generate` of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
import late
from glassformer.apps.cli.main import run
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.model import Model
from interop.checkpoints import randomise

transformers = late.optional("transformers")

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
TEXTS = ["to be or not to be", "a dog runs", "the cat sat", " x", "that is the question"]
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 40}
SIZES |= {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("attention_heads", 2), ("ffn_dim", 24))
}


def nllb() -> Any:
    vocab = {token: i for i, token in enumerate((*SPECIAL, "▁", *LETTERS, "▁t", "he"))}
    return transformers.NllbTokenizer(vocab, [("▁", "t"), ("h", "e")], src_lang="eng_Latn", tgt_lang="deu_Latn")


def unigram(cls: Any, special: tuple[str, ...] = SPECIAL, **options: Any) -> Any:
    return cls([(token, -float(i)) for i, token in enumerate((*special, "▁", *LETTERS, "▁t", "he"))], **options)


def model_of(name: str, tokenizer: Any, **ids: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(vocab_size=len(tokenizer), pad_token_id=1, **SIZES, **ids)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    randomise(model)
    model.generation_config.forced_eos_token_id = None
    return model


def saved(theirs: Any, tokenizer: Any, folder: Path) -> Model:
    for part in (theirs, tokenizer):
        part.save_pretrained(folder / "hf")
    import_model(folder / "hf", folder / "ours", log=lambda text: None)
    return glassformer.load(folder / "ours", device="cpu")


def assert_translates_as_theirs(ours: Model, theirs: Any, tokenizer: Any, target: str) -> None:
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    sources = [ids[mask.bool()].tolist() for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]
    # a source is read without the space around it
    assert [ours.encode_source(text) for text in TEXTS if text == text.strip()] == [
        ids for text, ids in zip(TEXTS, sources, strict=True) if text == text.strip()
    ]
    language = tokenizer.convert_tokens_to_ids(target)
    special = [i for i in map(ours.tokenizer.vocab.get, ours.tokenizer.special_tokens) if i not in (language, 2)]

    def not_again(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Suppress the language token after the first step, as glassformer does."""
        if ids.shape[1] > 1:
            scores[:, language] = -torch.inf
        return scores

    for beam in (1, 4):
        search: Any = {"num_beams": beam, "max_new_tokens": 12} | ({"early_stopping": "never"} if beam > 1 else {})
        search |= {"forced_bos_token_id": language, "suppress_tokens": special, "logits_processor": [not_again]}
        found = theirs.generate(**batch, **search)
        settings: Any = {
            "beam": beam,
            "max_new_tokens": 12,
            "length_penalty_type": "average",
            "early_stopping": "never",
        }
        translated = ours.translations_of_ids(sources, **settings)
        for row, (best, *_) in zip(found.tolist(), translated, strict=True):
            written = [i for i in row[1:] if i != 1]
            assert best.hypothesis.ids == written and written[0] == language


def test_nllb_translates_between_chosen_languages(tmp_path: Path) -> None:
    tokenizer = nllb()
    theirs = model_of("M2M100", tokenizer)
    theirs.generation_config.forced_bos_token_id = tokenizer.convert_tokens_to_ids("deu_Latn")
    ours = saved(theirs, tokenizer, tmp_path)
    assert_translates_as_theirs(ours, theirs, tokenizer, "deu_Latn")
    tokenizer.src_lang = "fra_Latn"
    other = ours.with_languages("fra_Latn", "spa_Latn")
    assert_translates_as_theirs(other, theirs, tokenizer, "spa_Latn")
    assert other.network is ours.network and ours.encode_source("a") != other.encode_source("a")


def test_translate_takes_both_languages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(model_of("M2M100", nllb()), nllb(), tmp_path)

    def printed(source: str, target: str) -> list[str]:
        options = ["--beam", "2", "--n-best", "2", "--max-new-tokens", "9"]
        options += ["--source-language", source, "--target-language", target]
        assert run(["translate", str(tmp_path / "ours"), *options, "a dog runs"]) == 0
        return capsys.readouterr().out.splitlines()

    other = model.with_languages("fra_Latn", "spa_Latn")
    found = other.translations("a dog runs", beam=2, n_best=2, max_new_tokens=9)
    marks = ["" if best.is_finished else "\tunfinished" for best in found]
    expected = [f"1\t{best.hypothesis.score:.4f}\t{best.text}{mark}" for best, mark in zip(found, marks, strict=True)]
    assert printed("fra_Latn", "spa_Latn") == expected != printed("spa_Latn", "fra_Latn")


def test_an_export_keeps_both_languages(tmp_path: Path) -> None:
    ours = saved(model_of("M2M100", nllb()), nllb(), tmp_path).with_languages("fra_Latn", "spa_Latn")
    export(ours, tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.generation_config.forced_bos_token_id == tokenizer.convert_tokens_to_ids("spa_Latn")
    assert_translates_as_theirs(ours, theirs, tokenizer, "spa_Latn")
    again = import_model(tmp_path / "out", tmp_path / "again", log=lambda text: None)
    loaded = glassformer.load(tmp_path / "again", device="cpu")
    assert again.architecture == "M2M100ForConditionalGeneration"
    assert loaded.translate(TEXTS, beam=1, max_new_tokens=9) == ours.translate(TEXTS, beam=1, max_new_tokens=9)
    assert [x.fingerprint for x in (loaded.tokenizers.source, loaded.tokenizers.target)] == [
        x.fingerprint for x in (ours.tokenizers.source, ours.tokenizers.target)
    ]


def test_mbart_50_has_the_language_before_the_text(tmp_path: Path) -> None:
    tokenizer = unigram(transformers.MBart50Tokenizer, ("<unk>", "<s>", "</s>"), src_lang="en_XX", tgt_lang="de_DE")
    theirs = model_of("MBart", tokenizer, decoder_start_token_id=2)
    theirs.generation_config.forced_bos_token_id = tokenizer.convert_tokens_to_ids("de_DE")
    ours = saved(theirs, tokenizer, tmp_path)
    assert_translates_as_theirs(ours, theirs, tokenizer, "de_DE")
    tokenizer.src_lang = "fr_XX"
    assert_translates_as_theirs(ours.with_languages("fr_XX", "ja_XX"), theirs, tokenizer, "ja_XX")


def test_mbart_has_the_language_after_the_source_and_as_start_of_the_target(tmp_path: Path) -> None:
    tokenizer = unigram(transformers.MBartTokenizer, src_lang="en_XX", tgt_lang="ro_RO")
    start = tokenizer.convert_tokens_to_ids("ro_RO")
    ours = saved(model_of("MBart", tokenizer, decoder_start_token_id=start), tokenizer, tmp_path)
    assert ours.encode_source("a dog") == tokenizer("a dog").input_ids
    assert ours.translator.target_ids("a dog") == [start, *tokenizer("a dog", add_special_tokens=False).input_ids]
    assert ours.tokenizers.target.frames.target.after == (2,)
    tokenizer.src_lang = "fr_XX"
    assert ours.with_languages("fr_XX").encode_source("a dog") == tokenizer("a dog").input_ids
    with pytest.raises(UserError, match=r"starts each target with ro_RO .* its target language cannot be chosen"):
        ours.with_languages(None, "de_DE")


def test_a_list_of_forced_tokens_is_reported(tmp_path: Path) -> None:
    saved(model_of("M2M100", nllb()), nllb(), tmp_path)
    path, log = tmp_path / "hf" / "generation_config.json", list[str]()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"forced_bos_token_id": [4]}))
    import_model(tmp_path / "hf", tmp_path / "again", log=log.append)
    assert any("not imported from the generation defaults: forced_bos_token_id = [4]" in line for line in log)


def test_an_unknown_language_is_named(tmp_path: Path) -> None:
    ours = saved(model_of("M2M100", nllb()), nllb(), tmp_path)
    with pytest.raises(UserError, match="xyz_Latn is not a language of the model's tokenizer; known are ace_Arab"):
        ours.with_languages("xyz_Latn")


@torch.no_grad()
def test_a_model_without_language_tokens_is_refused(tmp_path: Path) -> None:
    from interop.checkpoints import imported
    from interop.test_marian import marian

    both = imported(marian(), tmp_path)
    with pytest.raises(UserError, match="the model's tokenizer has no language tokens"):
        both.ours.with_languages("en_XX")


def test_m2m100_needs_a_tokenizer_file(tmp_path: Path) -> None:
    """transformers saves its tokenizer as two other files."""
    model_of("M2M100", nllb()).save_pretrained(tmp_path / "hf")
    for name in ("vocab.json", "sentencepiece.bpe.model"):
        (tmp_path / "hf" / name).write_text("{}")
    with pytest.raises(UserError, match=r"transformers has no fast tokenizer for M2M-100 that writes one: build it"):
        import_model(tmp_path / "hf", tmp_path / "ours", log=lambda text: None)
