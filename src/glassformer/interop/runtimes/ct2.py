"""A model of ours as a folder of CTranslate2, which translates and generates fast on CPUs; checked by running it.

The specification is filled from our modules and not from a family of transformers: so a model that starts from its own
token, has two vocabularies or Vaswani's interleaved sines goes in as it is.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config.transformer import TransformerConfig
from glassformer.data.batching import pad
from glassformer.errors import UserError, needs
from glassformer.inference.score import forced_scores
from glassformer.interop import tokenizer_files
from glassformer.interop.runtimes.ct2_spec import misfits, specify
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import StoredModel
from glassformer.tokenization.tokenizer import Tokenizer

TOLERANCE = 1e-4
"""Of logits and of log p, × max(1, the largest of them): what other orders of summation differ by in fp32."""
N_ROWS, N_TOKENS = 20, 12
"""Random rows that are compared, and their length."""


def write_ct2(stored: StoredModel, folder: Path) -> list[str]:
    """Writes CTranslate2's files and the tokenizers, runs them, and compares; what was found, line by line.

    `UserError` when CTranslate2 has no such model, and when it computes another.
    """
    with needs("the export to CTranslate2", "export"):
        import ctranslate2 as ct2
    config, network = stored.config, stored.network
    if not isinstance(config, TransformerConfig) or not isinstance(network, Transformer):
        raise UserError("CTranslate2 has no recurrent encoder-decoder: this model stays in our own format")
    if wrong := misfits(config):
        raise UserError(f"CTranslate2 cannot compute this model exactly: {'; '.join(wrong)}")
    network = network.cpu().eval()
    spec = specify(ct2, network)
    _name_tokens(spec, stored, config)
    spec.validate()
    spec.optimize()  # finds what is tied, and writes it once
    spec.save(str(folder))
    tokenizer_files.write_tokenizers(stored, folder)
    n_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return [f"{spec.name}: {n_bytes:,} bytes", *_compare(ct2, folder, stored, config, network)]


def tokens_of(tokenizer: Tokenizer, n_rows: int) -> list[str]:
    """A token for each row of a table: rows beyond the vocabulary have names that no text has."""
    return [*tokenizer.vocab, *(f"[UNUSED{i}]" for i in range(tokenizer.vocab_size, n_rows))]


def _name_tokens(spec: Any, stored: StoredModel, config: TransformerConfig) -> None:
    """Vocabularies, special tokens, and the epsilon of norms, which stand in files of their own."""
    tokenizer, source = stored.tokenizer, stored.source_tokenizer or stored.tokenizer
    targets = tokens_of(tokenizer, config.vocab_size)
    spec.config.layer_norm_epsilon = config.norm_eps
    end = _end_id(stored, config)
    # Without an unknown token of its own, a vocabulary would get one more token than the table has rows.
    for name, token_id in (("unk", tokenizer.unk_id), ("bos", tokenizer_files.trained_start(stored)), ("eos", end)):
        if hasattr(spec.config, f"{name}_token"):
            setattr(spec.config, f"{name}_token", targets[end if token_id is None else token_id])
    if not config.is_encoder_decoder:
        spec.register_vocabulary(targets)
        return
    if config.decoder_start_id is None:
        raise UserError("the model's configuration names no decoder_start_id: nothing says where a target starts")
    spec.config.decoder_start_token = targets[config.decoder_start_id]
    spec.register_source_vocabulary(tokens_of(source, config.encoder_vocab_size))
    spec.register_target_vocabulary(targets)


def _end_id(stored: StoredModel, config: TransformerConfig) -> int:
    end = stored.tokenizer.eos_id if config.eos_id is None else config.eos_id
    if end is not None:
        return end
    if config.decoder is not None:
        raise UserError("this model has no token that ends a text, and CTranslate2 needs one")
    return 0  # an encoder writes nothing


@torch.inference_mode()
def _compare(
    ct2: ModuleType, folder: Path, stored: StoredModel, config: TransformerConfig, network: Transformer
) -> list[str]:
    """What a run of the folder gave, beside ours; `UserError` when they differ."""
    options = {"device": "cpu", "compute_type": "float32", "inter_threads": 1, "intra_threads": 1}
    if config.decoder is None:
        return _compare_encoder(ct2.Encoder(str(folder), **options), config, network)
    if config.encoder is None:
        return _compare_decoder(ct2.Generator(str(folder), **options), config, network, stored)
    return _compare_translator(ct2.Translator(str(folder), **options), config, network, stored)


def _compare_encoder(model: Any, config: TransformerConfig, network: Transformer) -> list[str]:
    rows = _random_rows(range(config.vocab_size), min(N_TOKENS, config.max_len))
    ids, mask = pad(rows, 0)
    types = torch.zeros_like(ids) if not config.n_token_types else ids % config.n_token_types
    of_rows = [kinds[: len(row)] for kinds, row in zip(types.tolist(), rows, strict=True)]
    found = model.forward_batch(rows, token_type_ids=of_rows if config.n_token_types else None)
    ours = network.hidden(ids, mask, token_types=types if config.n_token_types else None)
    difference = _require_close(torch.from_numpy(np.array(found.last_hidden_state))[mask], ours[mask], "hidden states")
    return [f"run in CTranslate2: hidden states differ by {difference:.1e} at most; its encoders have no head"]


def _compare_decoder(model: Any, config: TransformerConfig, network: Transformer, stored: StoredModel) -> list[str]:
    n_tokens = min(N_TOKENS, max(1, config.max_len // 2))
    rows = _random_rows(range(config.vocab_size), n_tokens, same_length=True)
    logits = torch.from_numpy(np.array(model.forward_batch(rows)))
    difference = _require_close(logits, network(torch.tensor(rows)), "logits")
    names = tokens_of(stored.tokenizer, config.vocab_size)
    n_new = min(N_TOKENS, config.max_len - n_tokens)
    if n_new:
        found = model.generate_batch(
            [[names[i] for i in row] for row in rows],
            max_length=n_new,
            include_prompt_in_result=False,
            return_end_token=True,
        )
        for row, one in zip(rows, found, strict=True):
            new = one.sequences_ids[0]
            _require_best(network(torch.tensor([row + new]))[0, len(row) - 1 : -1], new)
    return [
        f"run in CTranslate2: logits differ by {difference:.1e} at most",
        f"{len(rows)} continuations: every token is the one that ours finds best",
    ]


def _compare_translator(model: Any, config: TransformerConfig, network: Transformer, stored: StoredModel) -> list[str]:
    source_tokenizer = stored.source_tokenizer or stored.tokenizer
    source_names = tokens_of(source_tokenizer, config.encoder_vocab_size)
    special = set(source_tokenizer.special_tokens)  # a source of these alone is an empty one to it
    ordinary = [i for i, name in enumerate(source_names) if name not in special]
    sources = _random_rows(ordinary, min(N_TOKENS, config.encoder_max_len))
    targets = _random_rows(range(config.vocab_size), min(N_TOKENS, config.max_len - 1), seed=1)
    names = tokens_of(stored.tokenizer, config.vocab_size)
    ids = {name: i for i, name in enumerate(names)}
    read = [[source_names[i] for i in row] for row in sources]
    start, end = config.decoder_start_id, _end_id(stored, config)
    assert start is not None  # its token has a name by now
    scored = model.score_batch(read, [[names[i] for i in row] for row in targets], max_input_length=0)
    ours = forced_scores(network, sources, [[*row, end] for row in targets], start_id=start)
    theirs = torch.tensor([x for one in scored for x in one.log_probs])
    difference = _require_close(theirs, torch.tensor([x for one in ours for x in one.token_log_probs]), "log p")
    found = model.translate_batch(
        read,
        beam_size=1,
        min_decoding_length=0,  # by default, it writes no empty target
        max_decoding_length=min(N_TOKENS, config.max_len),
        return_end_token=True,
        max_input_length=0,
    )
    for row, one in zip(sources, found, strict=True):
        new = [ids[name] for name in one.hypotheses[0]]
        _require_best(network(torch.tensor([[start, *new[:-1]]]), source_ids=torch.tensor([row]))[0], new)
    return [
        f"run in CTranslate2: log p of {len(theirs)} tokens differs by {difference:.1e} at most",
        f"{len(sources)} greedy targets: every token is the one that ours finds best",
    ]


def _random_rows(ids: Sequence[int], n_tokens: int, seed: int = 0, same_length: bool = False) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    lengths = np.full(N_ROWS, n_tokens) if same_length else draw.integers(1, n_tokens + 1, N_ROWS)
    return [draw.choice(ids, size=n).tolist() for n in lengths]


def _require_close(theirs: Tensor, ours: Tensor, what: str) -> float:
    difference = float((theirs - ours).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(ours.abs().max())):
        raise UserError(f"the {what} of CTranslate2 differ by {difference:.2e}: nothing is kept")
    return difference


def _require_best(logits: Tensor, chosen: list[int]) -> None:
    """`UserError` unless each token has the highest logit, or misses it by less than rounding."""
    missed = logits.max(dim=-1).values - logits[torch.arange(len(chosen)), torch.tensor(chosen)]
    if not float(missed.max()) <= TOLERANCE * max(1.0, float(logits.abs().max())):
        raise UserError("CTranslate2 writes other tokens than this model: nothing is kept")
