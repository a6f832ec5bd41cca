"""The families of models that go in and out, one file for each kind of block."""

from glassformer.interop.families.bert import BERT, ROBERTA
from glassformer.interop.families.distilbert import DISTILBERT
from glassformer.interop.families.gpt2 import GPT2
from glassformer.interop.family import Family

FAMILIES: tuple[Family, ...] = (GPT2, BERT, ROBERTA, DISTILBERT)
"""In the order in which an export tries them."""
