"""Model families of transformers for import and export, and the nearest family to a model that no family supports."""

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.apps.interop.families import bart, bert, gemma, gpt, llama, llama_relatives, modernbert, t5
from glassformer.apps.interop.family import Family
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.common.errors import UserError, listed

FAMILIES: tuple[Family, ...] = (
    gpt.GPT2,
    llama.LLAMA,
    llama.MISTRAL,
    llama.QWEN2,
    llama.QWEN3,
    bert.BERT,
    bert.ROBERTA,
    bert.DISTILBERT,
    modernbert.EUROBERT,
    bart.BART,
    bart.BART_WITHOUT_HEAD,
    bart.MARIAN,
    t5.T5,
    t5.T5_ENCODER,
    t5.MT5,
    bert.XLM_ROBERTA,
    bert.CAMEMBERT,
    gpt.GPT_NEO,
    gpt.OPT,
    gpt.BLOOM,
    gpt.GPT_NEOX,
    llama_relatives.STARCODER2,
    llama_relatives.STABLELM,
    llama_relatives.OLMO,
    llama_relatives.PHI3,
    llama_relatives.PHI,
    llama_relatives.SMOLLM3,
    llama_relatives.OLMO2,
    llama_relatives.GRANITE,
    gemma.GEMMA,
    gemma.GEMMA2,
    gemma.GEMMA3,
    bart.MBART,
    bart.PEGASUS,
    bart.M2M100,
    llama.MIXTRAL,
    llama.QWEN3_MOE,
    modernbert.MODERNBERT,
)
"""Families in the order in which an export tries them, after the family that the model was imported from."""


def nearest(table: Mapping[str, Any], where: str, names: Sequence[object]) -> str:
    """Return the end of a sentence: which family can read most keys of a `config.json`, and what it lacks.

    Of equal families, prefer one with the same kind of head as the first class in `names`, such as ForCausalLM. The
    result is empty if no family can read the sizes.
    """
    head = str(next(iter(names), "")).partition("For")[2]
    readers: list[tuple[list[str], bool, Family]] = []
    for family in FAMILIES:
        hf = HFConfig(table, where)
        try:
            family.read(hf, next(iter(family.heads)))
        except UserError:  # the family cannot read the sizes
            continue
        has_other_heads = not any(name.endswith(f"For{head}") for name in family.heads)
        readers.append((hf.problems(), has_other_heads, family))
    if not readers:
        return ""
    problems, _, family = min(readers, key=lambda reader: (len(reader[0]), reader[1]))
    if not problems:
        return f"; its keys are those of {family.name}, but its layers may differ"
    return f"; by its keys, the nearest family is {family.name}, which lacks: {listed(problems)}"
