"""Greedy and beam decoding of an encoder-decoder: glassformer, a plain loop, Marian of transformers and of CTranslate2.

Random weights; each sentence gets exactly `n_new` new tokens, because the end token is not chosen.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import translation_peers
from glassformer.config.run import BeamConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.search import Search
from plain_loops import PlainTranslator
from rates import DTYPES, choose_device, wait_for
from task import Precision, Task
from translation_peers import END, PAD, EncoderDecoder


@dataclass(frozen=True)
class Work:
    """Sentences to decode, and the sizes of the model."""

    beam: int
    n_sentences: int = 32
    n_source: int = 24
    n_new: int = 40
    sizes: Mapping[str, int] | None = None
    device: str = "auto"

    @property
    def shape(self) -> EncoderDecoder:
        return EncoderDecoder(**self.sizes or {})

    def sources(self) -> torch.Tensor:
        """Draw the source ids; they contain no special token."""
        size = (self.n_sentences, self.n_source)
        return torch.randint(len(SPECIAL), self.shape.vocab_size, size, generator=torch.Generator().manual_seed(0))

    def bytes_read(self, size: int) -> float:
        """Return the bytes of weights and cache that the decoder reads in `n_new` steps, and of the encoder once.

        `size` is the bytes of a number. Each sentence's keys and values of the source count once per step, those of the
        target once per hypothesis.
        """
        shape = self.shape
        square, ff = shape.d_model**2, 2 * shape.d_model * shape.d_ff
        encoder = shape.n_layers * (4 * square + ff)
        decoder = shape.n_layers * (6 * square + ff) + shape.vocab_size * shape.d_model
        targets = self.beam * sum(range(self.n_new))
        cached = (targets + self.n_new * self.n_source) * self.n_sentences * 2 * shape.n_layers * shape.d_model
        return float(size * (encoder + self.n_new * decoder + cached))


SPECIAL = ("[PAD]", "</s>", "<unk>", "<s>")


def ours(precision: Precision, **work: Any) -> Task:
    """Decode with `inference.beam.beam_search`."""
    todo = Work(**work)
    place, model = choose_device(todo.device), network(todo.shape).eval()
    model.to(place, DTYPES[precision])
    sources = todo.sources().to(place)

    def decode() -> None:
        config = BeamConfig(todo.beam, max_new_tokens=todo.n_new)
        search = Search(config, PAD, END, model.config.max_len, suppress_ids=[END])
        found = beam_search(model, (sources, None), search)
        _require(todo, min(len(hypotheses[0].ids) for hypotheses in found))

    return _task(decode, todo, precision, place)


def marian(precision: Precision, **work: Any) -> Task:
    """Decode with `generate` of transformers."""
    todo = Work(**work)
    place = choose_device(todo.device)
    torch.manual_seed(0)
    model = translation_peers.marian(todo.shape)
    model.to(place, DTYPES[precision]).eval()
    sources = todo.sources().to(place)

    def decode() -> None:
        ids = model.generate(
            sources,
            attention_mask=torch.ones_like(sources),
            num_beams=todo.beam,
            do_sample=False,
            min_new_tokens=todo.n_new,
            max_new_tokens=todo.n_new,
        )
        _require(todo, int(ids.shape[1]) - 1)

    return _task(decode, todo, precision, place)


def plain(precision: Precision, **work: Any) -> Task:
    """Decode with a plain loop (`plain_loops.py`)."""
    todo = Work(**work)
    place, model = choose_device(todo.device), network(todo.shape).eval()
    loop, sources = PlainTranslator(model.to(place, DTYPES[precision])), todo.sources().to(place)
    return _task(lambda: loop.search(sources, PAD, END, todo.n_new, todo.beam), todo, precision, place)


def network(shape: EncoderDecoder) -> Any:
    """Build glassformer's model, with the same random weights in every process."""
    torch.manual_seed(0)
    return translation_peers.ours(shape)


def exported(folder: str, beams: Sequence[int], **work: Any) -> Task:
    """Convert Marian to CTranslate2 in `folder`, with the sources as tokens.

    The converter removes the last row of the table, and starts a target from a zero vector in its place.
    """
    from ctranslate2.converters import TransformersConverter
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    todo, place = Work(beams[0], **work), Path(folder)
    names = [*SPECIAL, *(f"[{i}]" for i in range(len(SPECIAL), todo.shape.vocab_size - 1)), "<pad>"]
    words = WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    special = {"pad_token": "<pad>", "eos_token": SPECIAL[END], "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **special).save_pretrained(place / "hf")
    translation_peers.marian(todo.shape).save_pretrained(place / "hf")
    TransformersConverter(str(place / "hf")).convert(str(place / "ct2"))
    sources = [[names[min(i, len(names) - 2)] for i in row] for row in todo.sources().tolist()]
    read = {beam: replace(todo, beam=beam).bytes_read(4) for beam in beams}
    (place / "work.json").write_text(json.dumps({"sources": sources, "n_new": todo.n_new, "bytes_read": read}))
    return Task(lambda: None)


def _require(todo: Work, n_new: int) -> None:
    if n_new != todo.n_new:
        raise RuntimeError(f"expected {todo.n_new} new tokens, got {n_new}")


def _task(decode: Any, todo: Work, precision: Precision, place: torch.device) -> Task:
    return Task(
        decode,
        amount=todo.n_sentences,
        bytes_read=todo.bytes_read(DTYPES[precision].itemsize),
        wait=lambda: wait_for(place),
    )
