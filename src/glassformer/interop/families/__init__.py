"""Model families of transformers for import and export, one file per kind of block."""

from glassformer.interop.families import bart, bert, distilbert, eurobert, gpt2, llama, marian, t5
from glassformer.interop.family import Family

FAMILIES: tuple[Family, ...] = (
    gpt2.GPT2,
    llama.LLAMA,
    llama.MISTRAL,
    llama.QWEN2,
    llama.QWEN3,
    bert.BERT,
    bert.ROBERTA,
    distilbert.DISTILBERT,
    eurobert.EUROBERT,
    bart.BART,
    bart.BART_WITHOUT_HEAD,
    marian.MARIAN,
    t5.T5,
    t5.T5_ENCODER,
    t5.MT5,
)
"""Families in the order in which an export tries them, after the family that the model was imported from."""
