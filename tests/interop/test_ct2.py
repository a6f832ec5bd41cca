"""CTranslate2: every kind of supported model against glassformer; beams, texts and refusals."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

import glassformer
import late
from glassformer.config.run import BeamConfig, PairData, Seq2SeqConfig
from glassformer.config.transformer import (
    AlibiPositions,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    RelativePositions,
    RotaryPositions,
    SequenceHead,
    SinusoidalPositions,
    Stack,
    TokenHead,
    TransformerConfig,
    YarnScaling,
)
from glassformer.errors import UserError
from glassformer.inference.beam import Search, beam_search
from glassformer.interop.export import export
from glassformer.interop.runtimes import ct2
from glassformer.interop.tokenizer_files import row_names
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import StoredModel, read_model
from glassformer.tokenization.tokenizer import Tokenizer
from interop.checkpoints import TEXT, VOCAB, model_directory, tiny_tokenizer
from tolerances import NETWORK, near

ctranslate2 = late.optional("ctranslate2")

SIZES: dict[str, Any] = {"d_model": 16, "max_len": 24}
GPT = TransformerConfig(decoder=Stack(2, 4, d_ff=20), **SIZES)
NO_BIASES = dict.fromkeys(("qkv_bias", "attn_out_bias", "ff_bias"), False)
ROTARY = replace(
    GPT, positions=RotaryPositions(), norm="rmsnorm", norm_eps=1e-4, activation="silu", gated_ff=True, **NO_BIASES
)
BERT = TransformerConfig(encoder=Stack(2, 4, d_ff=20), **SIZES)
PAIR = TransformerConfig(
    encoder=Stack(3, 2, d_ff=20), decoder=Stack(2, 4, d_ff=28), decoder_start_id=2, source_max_len=15, **SIZES
)
VASWANI = replace(
    PAIR,
    positions=SinusoidalPositions(),
    norm_order="post",
    final_norm=False,
    activation="relu",
    share_embeddings=True,
    scale_embeddings=True,
)
T5 = replace(
    PAIR,
    positions=RelativePositions(8, 10),
    norm="rmsnorm",
    activation="gelu_tanh",
    gated_ff=True,
    attention_scale=1.0,
    scale_logits=True,
    share_embeddings=True,
    **NO_BIASES,
)


def turning(**changes: Any) -> TransformerConfig:
    return replace(ROTARY, positions=RotaryPositions(**changes))


CASES = {
    "learned": GPT,
    "untied_fused": replace(GPT, fused_qkv=True, tie_output=False, activation="gelu_tanh", norm_eps=1e-3),
    "post": replace(GPT, norm_order="post", embedding_norm=True),
    "post_no_final": replace(GPT, norm_order="post", final_norm=False),
    "pre_no_final": replace(GPT, final_norm=False, norm_bias=False),
    "no_norm_weights": replace(GPT, norm_weight=False),
    "scales": replace(
        GPT, attention_scale=1.0, scale_embeddings=True, scale_logits=True, head=TokenHead(bias="learned")
    ),
    "no_positions": replace(GPT, positions=NoPositions()),
    "alibi": replace(GPT, decoder=Stack(2, 3, d_head=6, d_ff=20), positions=AlibiPositions()),
    "rotary": ROTARY,
    "grouped": replace(ROTARY, decoder=Stack(2, 4, 2, d_head=6, d_ff=20), qkv_bias=True),
    "half_turned": turning(base=500.0, fraction=0.5),
    "turned_width_rounded_down": replace(
        ROTARY, positions=RotaryPositions(500.0, 0.35), decoder=replace(ROTARY.decoder, d_head=8)
    ),
    "linear": turning(scaling=LinearScaling(4.0)),
    "llama3": turning(scaling=Llama3Scaling(8.0, 1.0, 4.0, 16)),
    "yarn": turning(scaling=YarnScaling(4.0, 8, 4.0, 1.0)),
    "longrope": turning(scaling=LongRopeScaling((1.0, 1.3), 1.2)),
    "qk_norm": replace(ROTARY, qk_norm=True),
    "squared_relu": replace(GPT, activation="relu2"),
    "vaswani": VASWANI,
    "rotary_pair": replace(PAIR, positions=RotaryPositions(scaling=LinearScaling(2.0)), activation="relu2"),
    "grouped_pair": replace(
        ROTARY, encoder=Stack(1, 4, 1, d_ff=20), decoder=Stack(2, 4, 2, d_ff=28), decoder_start_id=2
    ),
    "halves": replace(VASWANI, positions=SinusoidalPositions("halves"), norm_order="pre", final_norm=True),
    "bart": replace(
        VASWANI, positions=LearnedPositions(2), embedding_norm=True, activation="gelu", head=TokenHead(bias="constant")
    ),
    "t5": T5,
    "bert": replace(BERT, n_token_types=2, norm_order="post", final_norm=False, embedding_norm=True),
    "rotary_encoder": replace(BERT, positions=RotaryPositions(fraction=0.5), qk_norm=True, norm="rmsnorm"),
    "classifier": replace(BERT, positions=RelativePositions(8, 10), head=SequenceHead(3), norm_eps=1e-2),
}


def made(config: TransformerConfig, folder: Path) -> Path:
    if not config.is_encoder_decoder:
        return model_directory(config, folder)
    changes = {"data": PairData(), "objective": Seq2SeqConfig(), "generation": BeamConfig()}
    return model_directory(config, folder, **changes)


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_glassformer(tmp_path: Path, name: str) -> None:
    """The export compares CTranslate2's outputs too; this test compares more and longer rows."""
    folder, out = made(CASES[name], tmp_path / "ours"), tmp_path / "out"
    messages = "\n".join(export(folder, out, "ct2").said)
    assert "run in CTranslate2" in messages
    network = glassformer.load(folder, device="cpu").network
    assert isinstance(network, Transformer)
    ids = torch.randint(VOCAB, (2, 15), generator=torch.Generator().manual_seed(3))
    if network.config.encoder is None:
        theirs = ctranslate2.Generator(str(out), intra_threads=1).forward_batch(ids.tolist())
    elif network.config.decoder is None:
        theirs = ctranslate2.Encoder(str(out), intra_threads=1).forward_batch(ids.tolist()).last_hidden_state
    else:
        assert "20 greedy targets" in messages
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
@pytest.mark.parametrize("config", [VASWANI, T5], ids=["vaswani", "t5"])
def test_beam_search_equals_glassformer(tmp_path: Path, config: TransformerConfig, penalty: float) -> None:
    """CTranslate2's search equals glassformer's if finished hypotheses are replaced and patience is high."""
    stored, out = sharp(config, tmp_path / "ours"), tmp_path / "out"
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


def test_texts_with_two_vocabularies(tmp_path: Path) -> None:
    """The files of the folder are sufficient to translate a text."""
    source = Tokenizer.train([TEXT * 4], vocab_size=265)
    stored = read_model(made(replace(VASWANI, share_embeddings=False, source_vocab_size=270), tmp_path / "ours"))
    stored = replace(stored, tokenizers=replace(stored.tokenizers, separate_source=source))
    out = tmp_path / "out"
    out.mkdir()
    assert "20 greedy targets" in ct2.write_ct2(stored, out)[-1]
    reads, writes = (tokenizers.Tokenizer.from_file(str(out / name / "tokenizer.json")) for name in ("", "target"))
    tokens = reads.encode("to be, or not").tokens
    assert tokens[-1] == "[EOS]"
    translator = ctranslate2.Translator(str(out), intra_threads=1)
    found = translator.translate_batch([tokens], beam_size=1, min_decoding_length=0, max_decoding_length=9)
    ids = [writes.token_to_id(token) for token in found[0].hypotheses[0]]
    network, end = stored.network, stored.tokenizers.target.eos_id
    assert isinstance(network, Transformer) and end is not None
    source_ids = torch.tensor([[*source.encode("to be, or not"), source.eos_id]])
    config = BeamConfig(1, max_new_tokens=9)
    ((best,),) = beam_search(network, (source_ids, None), Search(config, 2, end, 24))
    assert [i for i in best.ids if i != end] == ids


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(GPT, activation="relu2", gated_ff=True), "gated_ff: expected false"),
        (replace(GPT, decoder=Stack(2, 4, d_ff=20, window_pattern=(3,))), "window_pattern"),
        (replace(GPT, positions=RelativePositions(8, 10)), "positions: .*got relative"),
        (replace(PAIR, positions=AlibiPositions()), "positions: .*got alibi"),
        (replace(GPT, qk_norm=True), "qk_norm"),
        (replace(GPT, norm_order="sandwich", d_embedding=8), "d_embedding: .*got 8.*norm_order: .*got sandwich"),
        (replace(GPT, norm_order="parallel"), "norm_order: expected pre or post, got parallel"),
        (replace(GPT, norm_order="parallel", shared_norm=True), "shared_norm: expected false, got true"),
        (turning(fraction=0.5, scaling=YarnScaling(4.0, 8)), "yarn"),
        (turning(fraction=0.5, scaling=LongRopeScaling((1.3,), 1.2)), "expected 1 with longrope scaling"),
        (replace(GPT, head=TokenHead(transform=True)), "without a transform"),
    ],
)
def test_unsupported_models_are_refused(tmp_path: Path, config: TransformerConfig, words: str) -> None:
    folder = made(config, tmp_path / "ours")
    with pytest.raises(UserError, match=words):
        export(folder, tmp_path / "out", "ct2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [(GPT, "logits"), (PAIR, "log-probabilities"), (BERT, "hidden states")],
    ids=["gpt", "pair", "bert"],
)
def test_wrong_weights_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: TransformerConfig, words: str
) -> None:
    honest = ct2._fill_norm

    def shifted(spec: Any, norm: Any) -> None:
        honest(spec, norm)
        spec.gamma = spec.gamma * 1.01

    monkeypatch.setattr(ct2, "_fill_norm", shifted)
    folder = made(config, tmp_path / "ours")
    with pytest.raises(UserError, match=f"{words} of CTranslate2 differ"):
        export(folder, tmp_path / "out", "ct2")
    assert not (tmp_path / "out").exists()


def test_wrong_tokens_are_detected() -> None:
    logits = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    ct2._require_best(logits, [1, 0])
    with pytest.raises(UserError, match="other tokens"):
        ct2._require_best(logits, [1, 1])


@pytest.mark.parametrize("config", [GPT, VASWANI], ids=["gpt", "vaswani"])
def test_the_end_token_comes_from_the_configuration(tmp_path: Path, config: TransformerConfig) -> None:
    """It may differ from the tokenizer's end token."""
    stored = read_model(made(config, tmp_path / "ours"))
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
