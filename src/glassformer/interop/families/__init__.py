"""The families of models that go in and out, one file for each kind of block."""

from glassformer.interop.families.bart import BART, BART_WITHOUT_HEAD
from glassformer.interop.families.bert import BERT, ROBERTA
from glassformer.interop.families.distilbert import DISTILBERT
from glassformer.interop.families.eurobert import EUROBERT
from glassformer.interop.families.gpt2 import GPT2
from glassformer.interop.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from glassformer.interop.families.marian import MARIAN
from glassformer.interop.families.t5 import T5
from glassformer.interop.family import Family

FAMILIES: tuple[Family, ...] = (
    GPT2,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    BERT,
    ROBERTA,
    DISTILBERT,
    EUROBERT,
    BART,
    BART_WITHOUT_HEAD,
    MARIAN,
    T5,
)
"""In the order in which an export tries them, after the one that the model was imported from."""
