"""The methods of a `Model` that write texts: `generate`, `stream`, `continuations` and `translate`.

`encode_prompts` turns prompts into ids, and `text_settings` turns arguments into the settings of a generation. Then the
`Writer` of the model continues the ids.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

from glassformer.common.errors import Progress, UserError, one_note_per_call, require_integer
from glassformer.config.run import GENERATION_BATCH
from glassformer.inference.continuations import best_continuations
from glassformer.inference.drafts import DraftCounts, Drafter
from glassformer.inference.rows import Settings, check_prompts
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.translator import Translation
from glassformer.inference.writer import with_settings
from glassformer.model.one_or_list import PROMPT, is_prompt, listed, one_or_list
from glassformer.tasks.task import Prompt
from glassformer.tasks.trained_model import TrainedModel


@one_note_per_call
class WritingModel(TrainedModel):
    """A trained model that continues texts, or writes the target of a source."""

    # Prompts

    @overload
    def generate(self, prompt: str, *, n: Literal[1] = 1, **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: str, *, n: int, **settings: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], *, n: Literal[1] = 1, **settings: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], *, n: int, **settings: Any) -> list[list[str]]: ...
    @one_or_list(PROMPT, is_prompt, may_be_blank=True)
    def generate(
        self,
        prompt: Any,
        /,
        *,
        n: int = 1,
        sample: int = 0,
        slide: bool = False,
        special_tokens: bool = False,
        batch_size: int = GENERATION_BATCH,
        **settings: Any,
    ) -> Any:
        """Return the continuation of a prompt, or of each of several prompts (texts or ids).

        The full text is the prompt followed by the continuation. A prompt gives the same text alone and in a batch.
        With `n` above 1, the result for each prompt is a list of n samples. Sample i depends only on the prompt, the
        seed and i: `sample=i` draws this sample alone, and sample 0 is the text that is drawn without `n`. With both
        `sample` and `n`, samples `sample` to `sample + n - 1` are drawn. Equal prompts in a batch get equal texts; use
        `n` to get different texts.

        With `special_tokens`, special tokens in the text of a prompt, such as `<|im_start|>`, are read as tokens, as in
        transformers. By default they are ordinary text, because a user's text must not contain control tokens.

        `settings` are fields of `GenerationConfig` that replace the model's defaults; `seed=None` draws a new seed.
        `slide` lets the context slide. Raises `UserError` for a prompt that does not fit the context without `slide`,
        for an id outside the vocabulary, and for `n` above 1 at temperature 0. `batch_size` rows (prompts × samples)
        are generated at a time, and other rows follow as rows end. `batch_size` does not change the texts. With more
        rows, generation is faster and needs more memory.

        Speculative decoding: `draft`, a smaller model with the same tokenizer, proposes `draft_tokens` tokens per step,
        or `prompt_lookup=k` copies k tokens from earlier in the text. This model verifies them in one step. Greedy
        texts stay the same; sampled texts have the same distribution. `counts`, a `DraftCounts`, receives the numbers
        of proposed and accepted tokens.

        Beam search: with `beam`, the texts are the `n` best of `continuations`, and `settings` are fields of
        `BeamConfig`.
        """
        if "beam" in settings:
            settings |= {name: value for name, value in {"sample": sample, "slide": slide}.items() if value}
            best = self.continuations(
                list(prompt), n=n, special_tokens=special_tokens, batch_size=batch_size, **settings
            )
            return [found[0].text if n == 1 else [one.text for one in found] for found in best]
        encoded = self.encode_prompts(prompt, slide=slide, special_tokens=special_tokens)
        how, drafter = self.text_settings(n=n, sample=sample, slide=slide, batch_size=batch_size, **settings)
        found = dict(self.writer.finished(encoded, how, drafter))  # in the order in which the rows end
        texts = [found[row] for row in range(len(found))]
        return texts if n == 1 else [texts[i : i + n] for i in range(0, len(texts), n)]

    @overload
    def stream(self, prompts: str, *, n: Literal[1] = 1, **settings: Any) -> Iterator[str]: ...
    @overload
    def stream(self, prompts: Sequence[Prompt], *, n: int = 1, **settings: Any) -> Iterator[list[str]]: ...
    def stream(
        self,
        prompts: str | Sequence[Prompt],
        *,
        n: int = 1,
        sample: int = 0,
        slide: bool = False,
        special_tokens: bool = False,
        **settings: Any,
    ) -> Any:
        """Yield the new text of every row, step by step, in whole characters.

        Each prompt has `n` rows (see `generate`): row `j · n + i` is sample `sample + i` of prompt j. One prompt with
        one sample yields pieces of text; otherwise each step yields a list of pieces, one per row.
        """
        items, is_one = listed(self, prompts, "prompts", PROMPT, is_prompt)
        encoded = self.encode_prompts(items, slide=slide, special_tokens=special_tokens)
        how, drafter = self.text_settings(n=n, sample=sample, slide=slide, **settings)
        steps = self.writer.stream(encoded, how, drafter)
        return (pieces[0] for pieces in steps) if is_one and n == 1 else steps

    def encode_prompts(
        self, prompts: Sequence[Prompt], *, slide: bool = False, special_tokens: bool = False
    ) -> list[EncodedPrompt]:
        """Encode and validate all prompts; raise `UserError` if the model cannot continue one of them."""
        if not isinstance(special_tokens, bool):
            raise UserError(f"special_tokens: expected True or False, got {special_tokens!r:.60}")
        writer = self.writer
        encoded = [writer.encode(prompt, special_tokens) for prompt in prompts]
        check_prompts([prompt.ids for prompt in encoded], writer.max_len, slide)
        return encoded

    def text_settings(
        self,
        *,
        n: int = 1,
        sample: int = 0,
        slide: bool = False,
        batch_size: int | None = None,
        draft: TrainedModel | None = None,
        counts: DraftCounts | None = None,
        further_ends: Collection[int] = (),
        **settings: Any,
    ) -> tuple[Settings, Drafter | None]:
        """Return the settings of a generation, and the drafter if there is one; `generate` describes the arguments."""
        # 1. Checks of the arguments
        if "beam" in settings:
            raise UserError(
                "beam is for generate and continuations: a search knows its text only at the end; leave beam out for "
                "stream and chat"
            )
        if not (draft is None or isinstance(draft, TrainedModel)):
            raise UserError(f"draft: expected a Model, such as glassformer.load(DIR), got {draft!r:.60}")
        if not (counts is None or isinstance(counts, DraftCounts)):
            raise UserError(f"counts: expected a DraftCounts, which receives numbers of drafts, got {counts!r:.60}")
        if not isinstance(slide, bool):
            raise UserError(f"slide: expected True or False, got {slide!r:.60}")
        require_integer("n", n, 1, "the number of samples per prompt")
        require_integer("sample", sample, 0, "the number of the first sample, from 0")

        # 2. The settings of the model, some of them replaced
        writer, samples = self.writer, range(sample, sample + n)
        config = with_settings(writer.defaults, settings)
        drafter = writer.drafter(config, None if draft is None else draft.writer, counts)
        how = writer.settings(config, samples=samples, slide=slide, further_ends=further_ends)
        return replace(how, batch_size=batch_size), drafter

    # Beams

    @one_or_list(PROMPT, is_prompt)
    def continuations(
        self,
        prompts: Sequence[Prompt],
        /,
        *,
        n: int = 1,
        special_tokens: bool = False,
        batch_size: int = GENERATION_BATCH,
        **settings: Any,
    ) -> list[list[Translation]]:
        """Return the `n` best continuations of a prompt, or of each of several, by beam search, with ids and scores.

        `settings` are `stop` and fields of `BeamConfig`, such as `beam`. A field that sampling has, too, has the value
        of the model by default. At most `batch_size` rows (prompts × beam) are searched at a time. This does not change
        the texts. Raises `UserError` for settings of samples, for `n` above the beam, and for an overlong prompt.
        """
        encoded = self.encode_prompts(prompts, special_tokens=special_tokens)
        return list(best_continuations(self.writer, encoded, n=n, batch_size=batch_size, **settings))

    # Sources and targets

    @one_or_list("a text")
    def translate(self, source: Sequence[str], /, *, prefix: str = "", **settings: Any) -> list[str]:
        """Return the best target of a source, or of each of several; a source gives the same target in any batch.

        `settings` are fields of `BeamConfig` that replace the model's defaults; every target begins with `prefix`.
        """
        return [found[0].text for found in self.translations(source, prefix=prefix, **settings)]

    @one_or_list("a text")
    def translations(self, sources: Sequence[str], /, **settings: Any) -> list[list[Translation]]:
        """Return the `n_best` targets of a source, or of each of several; see `translations_of_ids`."""
        return self.translations_of_ids([self.translator.source_ids(source) for source in sources], **settings)

    def translations_of_ids(
        self,
        sources: Sequence[Sequence[int]],
        *,
        n_best: int = 1,
        prefix: str = "",
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """Return the `n_best` targets of encoded sources (`encode_source`), best first, with ids and scores."""
        if not isinstance(prefix, str):
            raise UserError(f"prefix: expected a text, with which every target begins, got {prefix!r:.60}")
        translator, config = self.translator, self.translator.beam(settings)
        return translator.translate_ids(sources, config, n_best=n_best, prefix=prefix, progress=progress)
