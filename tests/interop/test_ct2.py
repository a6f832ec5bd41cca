"""CTranslate2: its converter reads the exports of several families, with glassformer's outputs; others are refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import glassformer
import late
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.apps.interop.runtimes import ct2
from glassformer.apps.interop.tokenizer_files import row_names
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig, PairData, Seq2SeqConfig
from glassformer.config.transformer import Llama3Scaling, RotaryPositions, Stack, TransformerConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.search import Search
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import StoredModel, read_model
from interop.checkpoints import VOCAB, model_directory, randomise, tiny_tokenizer
from interop.family_configs import FAMILY_CONFIGS
from interop.test_marian import marian
from tolerances import NETWORK, near

ctranslate2 = late.optional("ctranslate2")
late.optional("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and of the converter

GPT, LLAMA = FAMILY_CONFIGS["GPT-2"], replace(FAMILY_CONFIGS["Llama"], decoder=Stack(2, 4, 2, d_ff=20))
CASES = {
    "GPT-2": replace(GPT, norm_eps=1e-3),  # the converter leaves out the epsilon
    "GPT-2 without scales": replace(GPT, norm_weight=False, tie_output=False),
    "Llama": replace(LLAMA, norm_eps=1e-4),
    "Qwen2": replace(LLAMA, qkv_bias=True),
    **{name: FAMILY_CONFIGS[name] for name in ("Qwen3", "BERT", "DistilBERT", "BART", "T5")},
}


def made(config: TransformerConfig, folder: Path) -> Path:
    if not config.is_encoder_decoder:
        return model_directory(config, folder)
    changes = {"data": PairData(), "objective": Seq2SeqConfig(), "generation": BeamConfig()}
    return model_directory(config, folder, **changes)


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_glassformer(tmp_path: Path, name: str) -> None:
    """The export compares outputs too; this test compares longer rows, and the texts that a decoder writes."""
    folder, out = made(CASES[name], tmp_path / "ours"), tmp_path / "out"
    first, second = export(folder, out, "ct2").said
    assert first.startswith(name.split()[0]) and second.startswith("run in CTranslate2: ")
    assert {path.name for path in out.iterdir()} >= {"model.bin", "config.json", "tokenizer.json", "README.md"}
    network = glassformer.load(folder, device="cpu").network
    assert isinstance(network, Transformer)
    ids = torch.randint(7, VOCAB, (2, 15), generator=torch.Generator().manual_seed(3))
    if network.config.encoder is None:
        generator = ctranslate2.Generator(str(out), intra_threads=1)
        theirs = generator.forward_batch(ids.tolist())
        names = row_names(tiny_tokenizer(), VOCAB)
        (found,) = generator.generate_batch([[names[i] for i in ids[0]]], max_length=5, include_prompt_in_result=False)
        row = ids[0].tolist()
        for token in found.sequences_ids[0]:
            with torch.inference_mode():
                assert int(network(torch.tensor([row]))[0, -1].argmax()) == token
            row.append(token)
    elif network.config.decoder is None:
        theirs = ctranslate2.Encoder(str(out), intra_threads=1).forward_batch(ids.tolist()).last_hidden_state
    else:
        return
    with torch.inference_mode():
        ours = network(ids) if network.config.decoder is not None else network.hidden(ids)
    assert float((torch.from_numpy(np.array(theirs)) - ours).abs().max()) <= 1e-5 * max(1.0, float(ours.abs().max()))


def sharp(config: TransformerConfig, folder: Path) -> StoredModel:
    """Make a random model whose predictions are far from uniform, so that hypotheses differ."""
    stored = read_model(made(config, folder))
    with torch.no_grad():
        for name, x in stored.network.named_parameters():
            if name.endswith("embeddings.tokens.weight") or "output" in name:
                x.mul_(3)
    return stored


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("name", ["BART", "T5"])
def test_beam_search_equals_glassformer(tmp_path: Path, name: str, penalty: float) -> None:
    """CTranslate2's search equals glassformer's if finished hypotheses are replaced and patience is high."""
    stored, out = sharp(CASES[name], tmp_path / "ours"), tmp_path / "out"
    out.mkdir()
    ct2.write_ct2(stored, out)
    network, names = stored.network, row_names(stored.tokenizers.target, VOCAB)
    translator, end = ctranslate2.Translator(str(out), intra_threads=1), stored.tokenizers.target.eos_id
    assert isinstance(network, Transformer) and end is not None
    # CTranslate2 treats a source of only special tokens as empty, with an empty target.
    rows = [
        torch.randint(7, VOCAB, (1, 1 + n % 15), generator=torch.Generator().manual_seed(n)) for n in range(0, 20, 2)
    ]
    found = translator.translate_batch(
        [[names[i] for i in row[0]] for row in rows],
        beam_size=4,
        patience=10,
        length_penalty=penalty,
        min_decoding_length=0,
        max_decoding_length=16,
        return_scores=True,
        return_end_token=True,
    )
    search = BeamConfig(4, penalty, "average", "never", max_new_tokens=16)
    for row, one in zip(rows, found, strict=True):
        ((best,),) = beam_search(network, (row, None), Search(search, 2, end, 24))
        assert [names[i] for i in best.ids] == one.hypotheses[0]
        assert one.scores[0] == near(best.score, terms=NETWORK)


def test_an_imported_marian_starts_from_the_padding(tmp_path: Path) -> None:
    """The padding, which starts a target, is the last row and its embedding is 0, as the converter assumes."""
    end, pad = 3, VOCAB - 1
    theirs = marian(vocab_size=VOCAB, pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=end).eval()
    randomise(theirs)
    with torch.no_grad():
        theirs.model.shared.weight[pad] = 0
    theirs.save_pretrained(tmp_path / "hf")
    description = json.loads(tiny_tokenizer().to_json())
    n_tokens = len(description["model"].pop("frequencies"))
    names = [*(f"[{i}]" for i in range(n_tokens, pad)), "<pad>"]
    description["model"]["vocab"] |= {name: n_tokens + i for i, name in enumerate(names)}
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(description))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "[EOS]"}
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(settings | {"unk_token": "[UNK]"}))
    import_model(tmp_path / "hf", tmp_path / "ours", log=lambda text: None)
    said = export(tmp_path / "ours", tmp_path / "out", "ct2").said
    assert said[0].startswith("Marian") and "log-probabilities differ by at most" in said[1]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(LLAMA, qk_norm=True, decoder=None, encoder=LLAMA.decoder), "no model family of transformers"),
        (FAMILY_CONFIGS["EuroBERT"], "cannot read this model, a EuroBERT .*: No conversion is registered"),
        (FAMILY_CONFIGS["Marian"], "cannot read this model, a Marian .*: Source vocabulary 0 has size"),
        (replace(GPT, activation="relu2"), "cannot read this model, a GPT-2 .*: KeyError: 'relu2'"),
        (
            replace(LLAMA, positions=RotaryPositions(scaling=Llama3Scaling(8.0, 1.0, 4.0, 16))),
            "changes this model, a Llama .*: logits differ by",
        ),
    ],
)
def test_what_the_converter_does_not_read_is_refused(tmp_path: Path, config: TransformerConfig, words: str) -> None:
    folder = made(config, tmp_path / "ours")
    with pytest.raises(UserError, match=words):
        export(folder, tmp_path / "out", "ct2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("GPT-2", "logits"), ("T5", "log-probabilities"), ("BERT", "hidden states")]
)
def test_a_changed_model_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    complete = ct2._name_tokens

    def changed(file: Path, *others: object) -> None:
        complete(file, *others)  # type: ignore[arg-type]
        file.write_text(json.dumps(json.loads(file.read_text()) | {"layer_norm_epsilon": 0.1}))

    monkeypatch.setattr(ct2, "_name_tokens", changed)
    folder = made(CASES[name], tmp_path / "ours")
    with pytest.raises(UserError, match=f"{words} differ by .* nothing was exported"):
        export(folder, tmp_path / "out", "ct2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["GPT-2", "BART"])
def test_the_end_token_comes_from_the_configuration(tmp_path: Path, name: str) -> None:
    """It may differ from the tokenizer's end token."""
    stored = read_model(made(CASES[name], tmp_path / "ours"))
    (tmp_path / "out").mkdir()
    ct2.write_ct2(
        replace(stored, config=replace(stored.config, eos_id=stored.tokenizers.target.sep_id)), tmp_path / "out"
    )
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token"] == "[SEP]"


def test_every_row_has_a_unique_name() -> None:
    tokenizer = tiny_tokenizer()
    names = row_names(tokenizer, VOCAB)
    assert len(set(names)) == VOCAB and names[: tokenizer.vocab_size] == list(tokenizer.vocab)


def test_a_missing_package_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(GPT, tmp_path / "ours")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"pip install 'glassformer\[export\]'"):
        export(folder, tmp_path / "out", "ct2")
