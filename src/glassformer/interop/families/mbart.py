"""mBART (Liu 2020) and Pegasus (Zhang 2020): BART and Marian, with norms before sublayers and after the last block."""

from dataclasses import replace

from glassformer.config.transformer import TokenHead
from glassformer.interop.families.bart import BART, BART_WITHOUT_HEAD, read_bart
from glassformer.interop.families.marian import MARIAN
from glassformer.interop.family import Family
from glassformer.interop.hf_config import Fields

PRE_NORM: Fields = {"norm_order": "pre", "final_norm": True}
ONLY = {"normalize_before": True, "add_final_layer_norm": True}


def _mbart(family: Family) -> Family:
    """Return mBART, given BART with or without its heads."""
    return replace(
        family,
        name=f"m{family.name}",
        model_type="mbart",
        heads={f"M{architecture}": head for architecture, head in family.heads.items()},
        always={**family.always, **PRE_NORM},
        only={**family.only, **ONLY},
        bare=frozenset(f"M{architecture}" for architecture in family.bare),
        builder=None,
    )


MBART, MBART_WITHOUT_HEAD = _mbart(BART), _mbart(BART_WITHOUT_HEAD)
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
