"""mBART (Liu 2020), Pegasus (Zhang 2020), M2M-100 (Fan 2020): BART and Marian with a norm before each sublayer.

M2M-100 and NLLB (2022) count the positions of their sinusoids from the id of the padding token + 1.
"""

from dataclasses import replace

from glassformer.apps.interop.equivalent import with_halves, with_scales_and_biases
from glassformer.apps.interop.families.bart import BART, limits_bart, read_bart, read_scale
from glassformer.apps.interop.families.marian import MARIAN
from glassformer.apps.interop.hf_config import Fields, HFConfig, settings
from glassformer.apps.interop.vocabulary_files import Parts
from glassformer.common.errors import UserError
from glassformer.config.transformer import SinusoidalPositions, TokenHead, TransformerConfig

PRE_NORM: Fields = {"norm_order": "pre", "final_norm": True}
ONLY = {"normalize_before": True, "add_final_layer_norm": True}
STARTS_WITH_THE_LAST_TOKEN = "its decoder starts with the last token of the text, and not with decoder_start_token_id"

MBART = replace(
    BART,
    name="mBART",
    model_type="mbart",
    heads={"MBartForConditionalGeneration": BART.heads["BartForConditionalGeneration"]},
    refused=dict.fromkeys(("MBartForSequenceClassification", "MBartModel"), STARTS_WITH_THE_LAST_TOKEN),
    always={**BART.always, **PRE_NORM},
    only={**BART.only, **ONLY},
    builder=None,
)
PEGASUS = replace(
    MARIAN,
    name="Pegasus",
    model_type="pegasus",
    heads={"PegasusForConditionalGeneration": TokenHead(bias="constant")},
    settings=BART.settings,
    always={**MARIAN.always, **PRE_NORM},
    only={**MARIAN.only, **ONLY},
    read_others=read_bart,
    write_others=BART.write_others,
    limits=BART.limits,
    unread=BART.unread,
    derived=BART.derived,
    stores_fixed=True,
    roles={"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
)


def read_m2m100(hf: HFConfig, fields: Fields) -> Fields:
    pad, start = hf.take("pad_token_id", int, 1), hf.take("decoder_start_token_id", int, 2)
    if pad == start:
        hf.problem(f"decoder_start_token_id: expected another id than pad_token_id, got {start}")
    positions = SinusoidalPositions("halves", pad + 1, ends_at_base=True)
    return read_bart(hf, fields) | read_scale(hf, is_scaled=True) | {"positions": positions}


def limits_m2m100(config: TransformerConfig) -> dict[str, bool]:
    return limits_bart(config) | {"model.pad_id is missing: positions start after it": config.pad_id is None}


def no_fast_tokenizer(parts: Parts) -> None:
    """Raise `UserError`: the only tokenizer of M2M-100 in transformers writes no `tokenizer.json` (NLLB's does)."""
    raise UserError(
        f"{parts.folder} has no tokenizer.json, and transformers has no fast tokenizer for M2M-100 that writes one: "
        f"build it from {' and '.join(PIECES)} with the package tokenizers, or import an NLLB model"
    )


PIECES = ("vocab.json", "sentencepiece.bpe.model")
M2M100 = replace(
    BART,
    name="M2M-100",
    model_type="m2m_100",
    heads={"M2M100ForConditionalGeneration": TokenHead()},
    refused={},
    settings=BART.settings
    | settings(str, "relu", activation="activation_function")
    | settings(float, 0.1, attention_dropout="attention_dropout"),
    always={**BART.always, **PRE_NORM, "embedding_norm": False},
    only={**MARIAN.only, **ONLY},
    read_others=read_m2m100,
    limits=limits_m2m100,
    recast=lambda config, weights: with_scales_and_biases(*with_halves(config, weights)),
    derived=(*BART.derived, "model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"),
    builder=no_fast_tokenizer,
    vocabulary=PIECES,
)
