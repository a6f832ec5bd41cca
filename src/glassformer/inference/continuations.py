"""The most probable continuations of prompts, by beam search with a causal language model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from glassformer.common.errors import UserError, require_integer
from glassformer.config.run import GENERATION_BATCH, BeamConfig, GenerationConfig
from glassformer.inference.beam import SentenceSearch, searched
from glassformer.inference.contexts import Context, Ids, read_contexts
from glassformer.inference.decodable import Decodable
from glassformer.inference.rows import check_prompts
from glassformer.inference.search import Hypothesis, Search, Steps
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.translator import Translation
from glassformer.inference.writer import RowText, Writer, with_settings
from glassformer.nn.kernels.linear import PackedWeights


def best_continuations(
    writer: Writer,
    prompts: Sequence[EncodedPrompt],
    *,
    n: int = 1,
    batch_size: int = GENERATION_BATCH,
    **settings: Any,
) -> Iterator[list[Translation]]:
    """Yield the `n` best continuations of each prompt, best first; `settings` are those of `beam_settings`.

    A text ends before a stop text. At a time, at most `batch_size` rows (prompts × beam) are searched, but at least one
    prompt.
    """
    require_integer("n", n, 1, "the number of continuations per prompt")
    require_integer("batch_size", batch_size, 1, "the number of rows at a time")
    sampling, config = beam_settings(writer.defaults, settings)
    texts = writer.settings(sampling)
    ends = tuple(sorted(texts.ends))
    search = Search(replace(config, end_ids=ends), None, None, writer.max_len, n, texts.suppress_ids)
    size = max(1, batch_size // config.beam)
    for begin in range(0, len(prompts), size):
        batch = prompts[begin : begin + size]
        found = continue_prompts(writer.network, writer.known_ids(batch), search, writer.device)
        for prompt, hypotheses in zip(batch, found, strict=True):
            rows = [RowText(writer.tokenizer, prompt, texts) for _ in hypotheses]
            yield [Translation(row.whole(one.ids), one) for row, one in zip(rows, hypotheses, strict=True)]


@torch.inference_mode()
def continue_prompts(
    model: Decodable, prompts: Sequence[Ids], search: Search, device: torch.device | str = "cpu"
) -> list[list[Hypothesis]]:
    """Return at most `n_best` continuations of every prompt by a language model, best first.

    A hypothesis has only the new ids. Their number is limited by `max_new_tokens` and by the context. The last new id
    may follow a full context. Raises `UserError` for an empty or overlong prompt, and for settings that need a source.
    """
    for name in ("max_ratio", "coverage_penalty"):
        if getattr(search.config, name):
            raise UserError(f"{name} needs a source, and a language model reads none: leave it out")
    check_prompts(prompts, search.max_len)
    limits = [min(search.config.max_new_tokens, search.max_len + 1 - len(prompt)) for prompt in prompts]
    room = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    with PackedWeights():
        contexts = [Context(tuple(prompt)) for prompt in prompts]
        logits, state = read_contexts(model, contexts, min(room, search.max_len), device)
        sentences = [
            SentenceSearch(search, limit, [], 0.0, before=prompt) for limit, prompt in zip(limits, prompts, strict=True)
        ]
        return searched(Steps(model, state), logits, sentences, search)


def beam_settings(defaults: GenerationConfig, settings: Mapping[str, Any]) -> tuple[GenerationConfig, BeamConfig]:
    """Return the settings of the texts and of the beam search of a language model, with the values in `settings`.

    A setting that sampling and beam search share has the model's value (`defaults`) by default. Raises `UserError` for
    a setting that only samples have.

    >>> _, config = beam_settings(GenerationConfig(temperature=0.5, max_new_tokens=9), {"beam": 2, "stop": "."})
    >>> config.beam, config.max_new_tokens
    (2, 9)
    """
    of_beams, of_samples = ({field.name for field in fields(cls)} for cls in (BeamConfig, GenerationConfig))
    both = of_beams & of_samples
    for name in sorted(settings.keys() & (of_samples | {"sample", "slide", "draft", "counts"}) - both - {"stop"}):
        raise UserError(f"{name} is for samples, and beam asks for a search: leave one out")
    given = {name: value for name, value in settings.items() if name in both or name == "stop"}
    texts = with_settings(defaults, given)
    shared = {name: getattr(texts, name) for name in both}
    return texts, BeamConfig(**shared | {name: value for name, value in settings.items() if name != "stop"})
