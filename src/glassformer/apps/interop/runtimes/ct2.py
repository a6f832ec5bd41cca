"""Export to CTranslate2, which translates and generates fast on CPUs, with its converter of transformers' folders.

The converter assumes some settings, such as the token that starts a target, so the result is run and compared.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.apps.interop.directory import CONFIG, quiet
from glassformer.apps.interop.hf import transformer_of, write_hf
from glassformer.apps.interop.tokenizer_files import row_names, write_tokenizers
from glassformer.common import files
from glassformer.common.errors import UserError, first_line, needs
from glassformer.config.transformer import TransformerConfig
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import TOKENIZER, StoredModel
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

TOLERANCE = 1e-4
"""Allowed difference of outputs, in units of max(1, largest value): the effect of the order of summation in fp32."""
N_ROWS, N_TOKENS = 20, 12
"""`N_ROWS`: number of random rows that are compared. `N_TOKENS`: number of tokens of each row."""


def write_ct2(stored: StoredModel, folder: Path) -> list[str]:
    """Convert an export to transformers, run the result and compare; return the lines of the report.

    Raises `UserError` if transformers has no family for the model, if the converter cannot read it, or if outputs
    differ.
    """
    with needs("the export to CTranslate2", "export"):
        import ctranslate2
        import transformers
        from ctranslate2.converters import TransformersConverter
    # What CTranslate2 needs of a model
    config, network = transformer_of(stored, "CTranslate2")
    if config.eos_id is None:
        config = replace(config, eos_id=stored.tokenizers.target.eos_id)
    if config.decoder is not None and config.eos_id is None:
        raise UserError("this model has no end token, and CTranslate2 needs one")
    if config.is_encoder_decoder and config.decoder_start_id is None:
        raise UserError("model.decoder_start_id is missing: CTranslate2 needs the token that starts a target")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        # Export to transformers, whose folders the converter reads
        source, converted = Path(place) / "hf", Path(place) / "ct2"
        source.mkdir()
        family = write_hf(stored, source)[0].partition(":")[0]
        _complete(source, config, stored.tokenizers.source)
        program = f"CTranslate2 {ctranslate2.__version__}"
        try:
            with quiet(transformers.utils.logging):
                TransformersConverter(str(source)).convert(str(converted))
            _name_tokens(converted / CONFIG, config, stored.tokenizers.target)
            with torch.inference_mode():
                what, theirs, ours = _outputs(ctranslate2, converted, config, network.cpu().eval(), stored.tokenizers)
        except Exception as error:  # errors of the converter share no base class
            reason = f"{type(error).__name__}: {first_line(error):.120}"
            raise UserError(f"{program} cannot read this model, a {family}: {reason}") from error
        # Compare before anything is in the folder
        difference = float((theirs - ours).abs().max()) if theirs.shape == ours.shape else torch.inf
        if not difference <= TOLERANCE * max(1.0, float(ours.abs().max())):
            raise UserError(
                f"the converter of {program} changes this model, a {family}: {what} differ by {difference:.2e}, so "
                "nothing was exported"
            )
        for path in converted.iterdir():
            path.rename(folder / path.name)
    write_tokenizers(stored, folder)
    n_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return [f"{family}, converted: {n_bytes:,} bytes", f"run in CTranslate2: {what} differ by at most {difference:.1e}"]


def _complete(folder: Path, config: TransformerConfig, tokenizer: Tokenizer) -> None:
    """Add what the converter needs: keys of BART's relatives before transformers 5, and a token for every row."""
    keys = {"normalize_before": config.norm_order == "pre", "normalize_embedding": config.embedding_norm}
    files.write_json(folder / CONFIG, files.read_json(folder / CONFIG) | keys)
    description = files.read_json(folder / TOKENIZER)
    if isinstance(description["model"]["vocab"], dict):
        names = enumerate(row_names(tokenizer, config.encoder_vocab_size))
        description["model"]["vocab"] |= {name: i for i, name in names if i >= tokenizer.vocab_size}
        files.write_json(folder / TOKENIZER, description)


def _name_tokens(file: Path, config: TransformerConfig, tokenizer: Tokenizer) -> None:
    """Set what the converter leaves empty: the epsilon of norms, and tokens that the tokenizer does not have."""
    settings, names = files.read_json(file), row_names(tokenizer, config.vocab_size)
    known = {"eos_token": names[config.eos_id or 0]}  # an encoder has no use for it
    if config.decoder_start_id is not None:
        known["decoder_start_token"] = names[config.decoder_start_id]
    tokens = {key: settings[key] or known.get(key, known["eos_token"]) for key in settings if key.endswith("_token")}
    epsilon = settings.get("layer_norm_epsilon") or config.norm_eps
    files.write_json(file, settings | tokens | {"eos_token": known["eos_token"], "layer_norm_epsilon": epsilon})


def _outputs(
    ct2: Any, folder: Path, config: TransformerConfig, network: Transformer, tokenizers: Tokenizers
) -> tuple[str, Tensor, Tensor]:
    """Return the name of what is compared, CTranslate2's outputs for random rows, and the model's outputs."""
    options = {"device": "cpu", "compute_type": "float32", "inter_threads": 1, "intra_threads": 1}
    n_tokens = min(N_TOKENS, config.encoder_max_len, max(1, config.max_len - 1))
    rows, texts = _random_rows(tokenizers.source, config.encoder_vocab_size, n_tokens)
    if config.decoder is None:
        hidden = np.array(ct2.Encoder(str(folder), **options).forward_batch(rows).last_hidden_state)
        return "hidden states", torch.from_numpy(hidden), network.hidden(torch.tensor(rows))
    if config.encoder is None:
        logits = np.array(ct2.Generator(str(folder), **options).forward_batch(rows))
        return "logits", torch.from_numpy(logits), network(torch.tensor(rows))
    targets, written = _random_rows(tokenizers.target, config.vocab_size, n_tokens)
    scored = ct2.Translator(str(folder), **options).score_batch(texts, written, max_input_length=0)
    theirs = torch.tensor([one.log_probs for one in scored])
    ids = torch.tensor([[config.decoder_start_id, *row, config.eos_id] for row in targets])
    n_kept = len(files.read_json(max(folder.glob("*_vocabulary.json"))))  # Marian's padding, the last row, is removed
    log_probs = network(ids[:, :-1], source_ids=torch.tensor(rows))[..., :n_kept].log_softmax(-1)
    return "log-probabilities", theirs, log_probs.gather(2, ids[:, 1:, None]).squeeze(2)


def _random_rows(tokenizer: Tokenizer, n_ids: int, n_tokens: int) -> tuple[list[list[int]], list[list[str]]]:
    """Return rows of ids that are no special tokens, and the tokens of these ids."""
    names = row_names(tokenizer, n_ids)
    ordinary = [i for i, name in enumerate(names) if name not in tokenizer.special_tokens]
    rows = np.random.default_rng(0).choice(ordinary, size=(N_ROWS, n_tokens)).tolist()
    return rows, [[names[i] for i in row] for row in rows]
