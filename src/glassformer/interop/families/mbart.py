"""mBART (Liu 2020) and Pegasus (Zhang 2020): BART and Marian, with norms before sublayers and after the last block."""

from dataclasses import replace

from glassformer.config.transformer import TokenHead
from glassformer.interop.families.bart import BART, read_bart
from glassformer.interop.families.marian import MARIAN
from glassformer.interop.hf_config import Fields

PRE_NORM: Fields = {"norm_order": "pre", "final_norm": True}
ONLY = {"normalize_before": True, "add_final_layer_norm": True}
STARTS_WITH_THE_LAST_TOKEN = "its decoder starts with the last token of the text, and not with decoder_start_token_id"

MBART = replace(
    BART,
    name="mBART",
    model_type="mbart",
    heads={"MBartForConditionalGeneration": BART.heads["BartForConditionalGeneration"]},
    refused=dict.fromkeys(
        ("MBartForSequenceClassification", "MBartForQuestionAnswering", "MBartModel"), STARTS_WITH_THE_LAST_TOKEN
    ),
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
