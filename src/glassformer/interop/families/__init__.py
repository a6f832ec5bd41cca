"""The families of models that go in and out, one file for each kind of block."""

from glassformer.interop.families.bart import BART
from glassformer.interop.families.gpt2 import GPT2
from glassformer.interop.families.marian import MARIAN
from glassformer.interop.family import Family

FAMILIES: tuple[Family, ...] = (GPT2, BART, MARIAN)
"""In the order in which an export tries them."""
