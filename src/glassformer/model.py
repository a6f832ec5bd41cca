"""`Model`: a trained network with methods that generate, translate, fill, classify, tag, embed and evaluate.

Its task (`tasks/`) makes the object that does the work of a method (`inference/`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from glassformer.common import files, notebook
from glassformer.common.chat_messages import Message
from glassformer.common.errors import (
    Log,
    Progress,
    UserError,
    needs,
    no_attribute,
    once,
    one_note_per_call,
    require_integer,
    require_type,
    warn,
)
from glassformer.config.run import GENERATION_BATCH, GenerationConfig
from glassformer.data.in_memory import Given, place_of
from glassformer.data.pairs import Pair
from glassformer.evaluation.compare import describe_model
from glassformer.evaluation.loss import LossReport
from glassformer.inference.chat import Chat, fitting
from glassformer.inference.drafts import DraftCounts, Drafter
from glassformer.inference.embed import Vectors
from glassformer.inference.fill import Filling
from glassformer.inference.one_or_list import (
    PROMPT,
    conversations_of,
    is_prompt,
    is_row,
    is_sentence,
    listed,
    one_or_list,
    require_text,
    texts_of,
)
from glassformer.inference.rows import Settings, check_prompts
from glassformer.inference.score import Score
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.translator import Translation
from glassformer.inference.writer import beam_settings, with_settings
from glassformer.models.devices import choose_device, emulation_note
from glassformer.store.model_directory import save_model
from glassformer.tasks.batches import Place, Places
from glassformer.tasks.task import Prompt, wrong_verb
from glassformer.tasks.trained_model import TrainedModel
from glassformer.tokenization.languages import languages, with_languages

if TYPE_CHECKING:
    from glassformer.inspection.ablation import Part
    from glassformer.inspection.attribution import Attribution
    from glassformer.inspection.capture import Hook, Trace
    from glassformer.inspection.lens import LensCells
    from glassformer.inspection.strongest import Strongest

OTHER_NAMES = {
    **dict.fromkeys(("num_parameters", "n_parameters"), "model.network.n_parameters()"),
    "perplexity": "model.score(text).perplexity or model.evaluate().perplexity",
    "export": "glassformer.export(model, folder)",
    "encode": "model.tokenizer.encode(text)",
    "decode": "model.tokenizer.decode(ids)",
    **dict.fromkeys(("run_with_cache", "activations", "hidden_states", "named_tensors"), "model.trace(text)"),
    **dict.fromkeys(("attentions", "attention_maps", "attention_weights", "get_attention"), "model.attention(text)"),
    **dict.fromkeys(("run_with_hooks", "add_hook", "register_hook"), "with model.hooks({name: function}):"),
    **dict.fromkeys(("lens",), "model.logit_lens(text)"),
    **dict.fromkeys(("attribution", "direct_logit_attribution", "logit_attrs"), "model.logit_attribution(text)"),
    **dict.fromkeys(("plot_attention", "plot", "heatmap", "visualize"), "glassformer.plot.attention(model, text)"),
    **dict.fromkeys(("patch", "activation_patching"), "glassformer.inspection.patching_of(model, clean, corrupted)"),
    "plot_alignment": "glassformer.plot.alignment(model, source)",
    **dict.fromkeys(("top_texts", "max_activating", "neurons"), "model.strongest_texts(texts, units)"),
    "dashboard": "model.inspect(text)",
    "head_scores": "glassformer.inspection.find_heads(model, text)",
    **dict.fromkeys(("ablation", "effects"), "with model.ablate(part):"),
    "bleu": "model.evaluate().scores",
    "accuracy": "model.evaluate().scores",
    "save_pretrained": "model.save(folder), or glassformer.export(model, folder) for transformers",
    "predict": "model.classify, model.tag, model.translate or model.generate",
    "sample": "model.generate(prompt, n=5)",
}
"""Names that users of other libraries try, and what to use instead."""


@one_note_per_call
@dataclass(frozen=True)
class Model(TrainedModel):
    """A trained network with its tokenizers and default settings; returned by `load`.

    A method that takes texts returns one result for one text, and a list for a list: `embed` returns a vector (D,) for
    one text and (N, D) for a list; `stream` yields pieces of text or lists of pieces.
    """

    def __repr__(self) -> str:
        """Describe the model in three lines: name and task, size, tokenizer and device."""
        config, n = self.config, sum(x.numel() for x in self.network.parameters())
        votes = f", an ensemble of {len(self.members)} models" if self.others else ""
        return (
            f"Model {self.name}: learned to {self.learned} (model.{self.task.verb}){votes}\n"
            f"  {type(config).__name__}: {n:,} parameters, at most {config.max_len:,} tokens\n"
            f"  {self.tokenizer} on {self.device}"
        )

    def _repr_html_(self) -> str:
        config, n = self.config, sum(x.numel() for x in self.network.parameters())
        facts = {"learned to": self.learned, "network": describe_model(config), "parameters": n}
        facts |= {"max_len": config.max_len, "tokenizer": self.tokenizer, "device": self.device}
        return notebook.table(facts, self.name)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name what to use for an attribute that other libraries' models have, or a `torch.nn.Module` has."""
            instead = OTHER_NAMES.get(name)
            if hasattr(torch.nn.Module, name):
                instead = instead or f"model.network.{name}"
            raise no_attribute("a Model", name, instead)

        def __call__(self, *inputs: Any, **named: Any) -> Any:
            raise TypeError("a Model is not called: model.network(ids) gives the logits of a tensor of ids (B, T)")

    def to(self, device: str | torch.device) -> "Model":
        """Move the networks to a device (`auto`, `cpu`, `cuda`, `cuda:N` or `mps`), in place; return this model.

        An ensemble shares its networks with the models that it was made of, so these models move with it.
        """
        where = choose_device(str(device), self.config)
        for network in self.members:
            network.to(where)
        object.__setattr__(self, "device", where)  # in place, like `torch.nn.Module.to`
        self.__dict__.pop("_translator", None)  # the cached translator uses the old device
        return self

    def save(self, folder: str | Path) -> Path:
        """Write a model directory that `load` reads back with the same outputs; weights are stored in fp32.

        Raises `UserError` if the folder is not empty, or if the model is an ensemble.
        """
        if self.others:
            raise UserError("an ensemble cannot be saved as one model; save each member in its own folder")
        out, run = files.as_path(folder, "folder"), replace(self.run, model=self.config, generation=self.generation)
        save_model(out, self.network, self.step, self.tokenizers, run, self.labels)
        return out

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
        seed and i: `sample=i` draws it again by itself, and sample 0 is the text that is drawn without `n`. With both,
        samples `sample` to `sample + n - 1` are drawn. Equal prompts in a batch get equal texts; use `n` to vary them.

        `special_tokens` reads special tokens written in a prompt, such as `<|im_start|>`, as these tokens, as
        transformers does. By default they are ordinary text, because a user's text must not contain control tokens.

        `settings` are fields of `GenerationConfig` that replace the model's defaults; `seed=None` draws a new seed.
        `slide` lets the context slide; without it, a prompt that does not fit raises `UserError`. So do an id outside
        the vocabulary, and `n` above 1 at temperature 0. `batch_size` rows (prompts × samples) are generated at a time,
        and others follow as rows end. It does not change the texts; with more rows, generation is faster and needs more
        memory.

        Speculative decoding: `draft`, a smaller model with the same tokenizer, proposes `draft_tokens` tokens per step,
        or `prompt_lookup=k` copies k tokens from earlier in the text. This model verifies them in one step. Greedy
        texts stay the same; sampled ones have the same distribution. `counts`, a `DraftCounts`, receives the numbers of
        proposed and accepted tokens.

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
        rows = self.generate_encoded(encoded, n=n, sample=sample, slide=slide, batch_size=batch_size, **settings)
        found = dict(rows)
        texts = [found[row] for row in range(len(found))]
        return texts if n == 1 else [texts[i : i + n] for i in range(0, len(texts), n)]

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

        `settings` are `stop` and fields of `BeamConfig`, such as `beam`; those that a sample has, too, are by default
        the model's. At most `batch_size` rows (prompts × beam) are searched at a time, which does not change the
        texts. Raises `UserError` for settings of samples, for `n` above the beam, and for an overlong prompt.
        """
        encoded = self.encode_prompts(prompts, special_tokens=special_tokens)
        return list(self.continuations_of_encoded(encoded, n=n, batch_size=batch_size, **settings))

    def continuations_of_encoded(
        self, prompts: Sequence[EncodedPrompt], *, n: int = 1, batch_size: int = GENERATION_BATCH, **settings: Any
    ) -> Iterator[list[Translation]]:
        """Yield the `continuations` of each of the encoded prompts (`encode_prompts`)."""
        require_integer("n", n, 1, "the number of continuations per prompt")
        require_integer("batch_size", batch_size, 1, "the number of rows at a time")
        if not isinstance(self.generation, GenerationConfig):
            raise wrong_verb(self.task, self, "generate")
        yield from self.writer.continued(
            _require_encoded(prompts), *beam_settings(self.generation, settings), n, batch_size
        )

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
        listed_prompts, is_one = listed(self, prompts, "prompts", PROMPT, is_prompt)
        encoded = self.encode_prompts(listed_prompts, slide=slide, special_tokens=special_tokens)
        steps = self.stream_encoded(encoded, n=n, sample=sample, slide=slide, **settings)
        return (pieces[0] for pieces in steps) if is_one and n == 1 else steps

    def stream_encoded(self, prompts: Sequence[EncodedPrompt], **settings: Any) -> Iterator[list[str]]:
        """Stream the continuations of encoded prompts (`encode_prompts`); `settings` are those of `stream`."""
        yield from self.writer.stream(_require_encoded(prompts), *self._continuation(**settings))

    def generate_encoded(
        self, prompts: Sequence[EncodedPrompt], *, batch_size: int = GENERATION_BATCH, **settings: Any
    ) -> Iterator[tuple[int, str]]:
        """Yield (row, continuation) of encoded prompts (`encode_prompts`) as each row ends.

        Row `j · n + i` is sample `sample + i` of prompt j; `settings` are those of `generate`.
        """
        how, drafter = self._continuation(**settings)
        yield from self.writer.finished(_require_encoded(prompts), replace(how, batch_size=batch_size), drafter)

    def _continuation(
        self,
        *,
        n: int = 1,
        sample: int = 0,
        slide: bool = False,
        draft: "Model | None" = None,
        counts: DraftCounts | None = None,
        further_ends: Collection[int] = (),
        **settings: Any,
    ) -> tuple[Settings, Drafter | None]:
        """Return the settings of a generation, with some of the model's replaced, and what proposes tokens."""
        if "beam" in settings:
            raise UserError(
                "beam is for generate and continuations: a search knows its text only at the end; leave beam out for "
                "stream and chat"
            )
        _require_drafts(draft, counts)
        if not isinstance(slide, bool):
            raise UserError(f"slide: expected True or False, got {slide!r:.60}")
        require_integer("n", n, 1, "the number of samples per prompt")
        require_integer("sample", sample, 0, "the number of the first sample, from 0")
        if not isinstance(self.generation, GenerationConfig):
            raise wrong_verb(self.task, self, "generate")
        config, samples = with_settings(self.generation, settings), range(sample, sample + n)
        drafter = self.writer.drafter(config, None if draft is None else draft.writer, counts)
        how = self.writer.settings(config, samples=samples, slide=slide, further_ends=further_ends)
        return how, drafter

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

    @overload
    def chat(self, messages: str | Sequence[Message], *, stream: Literal[False] = False, **settings: Any) -> str: ...
    @overload
    def chat(self, messages: str | Sequence[Message], *, stream: Literal[True], **settings: Any) -> Iterator[str]: ...
    @overload
    def chat(
        self, messages: Sequence[str | Sequence[Message]], *, stream: Literal[False] = False, **settings: Any
    ) -> list[str]: ...
    def chat(self, messages: Any, *, stream: bool = False, batch_size: int = GENERATION_BATCH, **settings: Any) -> Any:
        """Return the answer to the messages of a conversation, or of each of several conversations.

        A message is a dictionary with `role` (`system`, `user` or `assistant`) and `content`; a text is one message of
        the user. With `stream`, the answer to one conversation is an iterator over its pieces. `settings` are those of
        `generate`. Messages are written as in the model's training, by its chat template; a special token in a message
        is ordinary text. If the context is full, the oldest turns are left out.

        `conversation` keeps the cache between turns. Raises `UserError` for a model without a chat template.
        """
        conversations, is_one = conversations_of(messages)
        if stream and not is_one:
            raise UserError("stream: expected one conversation, got a list; leave out stream")
        if stream:
            return self.conversation(conversations[0]).answer(*self.chat_settings(**settings))
        how, drafter = self.chat_settings(**settings)
        prompts = self.encode_conversations(how, conversations)
        found = dict(self.writer.finished(prompts, replace(how, batch_size=batch_size), drafter))
        return found[0] if is_one else [found[row] for row in range(len(found))]

    def conversation(self, messages: Sequence[Message] = (), log: Log = warn) -> Chat:
        """Return a conversation that keeps the model's cache between turns.

        `conversation.add("user", text)` adds a message, and `conversation.answer(*model.chat_settings())` yields the
        pieces of the answer. `log` receives a note when old turns no longer fit the context.
        """
        return Chat(self.writer, self.conversation_encoder, messages, log)

    def encode_conversations(
        self, settings: Settings, conversations: Sequence[str | Sequence[Message]]
    ) -> list[EncodedPrompt]:
        """Return the ids that the model reads before each answer, with the turns that fit the context (`chat`)."""
        listed, _ = conversations_of(conversations)
        return [fitting(self.conversation_encoder, messages, settings)[0] for messages in listed]

    def chat_settings(self, **settings: Any) -> tuple[Settings, Drafter | None]:
        """Return the settings of answers, which also end at the end token of the chat template; see `generate`."""
        return self._continuation(further_ends=(self.conversation_encoder.end_id,), **settings)

    def prompt_ids(self, prompt: Prompt, *, special_tokens: bool = False) -> list[int]:
        """Return the ids of a prompt: a text with the start tokens of training before it, or the given ids unchanged.

        With `special_tokens`, a text that begins with the start tokens gets no second ones (see `generate`). Raises
        `UserError` for an empty prompt if the model was trained without start tokens.
        """
        (encoded,) = self.encode_prompts([prompt], slide=True, special_tokens=special_tokens)
        return list(encoded.ids)

    @one_or_list("a text")
    def translate(self, source: Sequence[str], /, *, prefix: str = "", **settings: Any) -> list[str]:
        """Return the best target of a source, or of each of several; a source gives the same target in any batch.

        `settings` are fields of `BeamConfig` that replace the model's defaults; every target begins with `prefix`.
        """
        return [found[0].text for found in self.translations(source, prefix=prefix, **settings)]

    def with_languages(self, source: str | None = None, target: str | None = None) -> "Model":
        """Return this translator for other languages, such as `eng_Latn`, `en_XX` or `en`; `None` keeps a language.

        The models share the network. Raises `UserError` if the tokenizer has no token for the language, or if the
        model starts targets with a fixed language token (mBART, `decoder_start_id`).
        """
        start = self.tokenizer.id_to_token(self.translator.start_id)
        if target is not None and start in languages(self.tokenizer):
            raise UserError(
                f"{self.name} starts each target with {start} (model.decoder_start_id): its target language cannot be "
                "chosen"
            )
        return replace(self, tokenizers=with_languages(self.tokenizers, source, target))

    @one_or_list("a text")
    def translations(self, sources: Sequence[str], /, **settings: Any) -> list[list[Translation]]:
        """Return the `n_best` targets of a source, or of each of several; see `translations_of_ids`."""
        return self.translations_of_ids([self.encode_source(source) for source in sources], **settings)

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

    @overload
    def score(self, text: str, target: str | None = None, *, source: str | None = None, log: Log = ...) -> Score: ...  # type: ignore[overload-overlap]
    @overload
    def score(
        self,
        text: Sequence[str],
        target: Sequence[str] | None = None,
        *,
        source: Sequence[str] | None = None,
        log: Log = ...,
    ) -> list[Score]: ...
    def score(self, text: Any, target: Any = None, *, source: Any = None, log: Log = warn) -> Score | list[Score]:
        """Return log p of a text, or of each of several; with `source`, given the source or beginning of the text.

        `score(text, source=source)` and `score(source, text)` are equivalent. A causal model also scores a text alone;
        an encoder-decoder needs the source. `log` receives a note if first tokens are not scored (`no_start`). Raises
        `UserError` for a blank source, and for a blank text without a source, which has no token to score.
        """
        texts, targets, is_one = texts_of(text, target, source)
        if is_one:  # of several texts, a blank one keeps its place
            require_text(texts, "text" if targets is None else "source")
        found = self._able(self.task.scorer(self), "score").score(texts, targets, log)
        return found[0] if is_one else found

    @property
    def no_start(self) -> str:
        """The note for a model that was trained without a start token before a text."""
        return self.writer.no_start

    def encode_source(self, text: str) -> list[int]:
        """Return the ids that the encoder reads, including the end token; raise `UserError` for a blank text."""
        require_text([text], "source")
        return self.translator.source_ids(text)

    def encode_target(self, text: str) -> list[int]:
        """Return the decoder's input ids for a target: start token, tokens before every target, tokens of the text."""
        return self.translator.target_ids(text)

    def evaluate(
        self,
        path: Given = None,
        progress: Progress | None = None,
        *,
        source: Place = None,
        target: Place = None,
        log: Log = warn,
        loss_only: bool = False,
    ) -> LossReport:
        """Return the loss and the scores (`scores`) on the run's own validation data, or on all of the given data.

        `loss_only` leaves out the scores, for which targets are generated. Every target counts once. Code and precision
        are those of the trainer, unless the model was loaded with a `dtype`. Text is cut into consecutive windows of
        the context length; pairs are two aligned files, `source` and `target`, or one file, `path`. `path` may also be
        data in memory, as for `train`: texts, (source, target), (text, label), dictionaries with the fields of the
        run's data, a DataFrame or a `datasets.Dataset`. `log` receives notes: the number of pairs left out (see
        `pairs`), and a warning if the run's own data has changed.
        """
        task, log = self.trainable_task, once(log)
        train = self.run.train if self.dtype is None else None
        if train is not None and (note := emulation_note(train.precision, self.device)):
            log(note)
        with place_of(path, self.run.data) as place:
            data = task.evaluation(self, Places(place, source, target), log)
            loss = data.loss(self.vote, self.device, train, progress)
            scores = {} if loss_only else self.scores(place, progress, source=source, target=target, log=log)
        return replace(loss, scores=scores)

    def scores(
        self,
        path: Given = None,
        progress: Progress | None = None,
        *,
        source: Place = None,
        target: Place = None,
        log: Log = warn,
        **settings: Any,
    ) -> dict[str, Any]:
        """Return the scores on the same data, in percent; an empty dictionary for a model that continues a text.

        Pairs have BLEU and chrF, or error rates; labels have accuracy, F1 and calibration, with the full report under
        `report`; masks have accuracy.
        """
        task = self.trainable_task
        with place_of(path, self.run.data) as place:
            return task.scores(self, Places(place, source, target), progress, log, settings)

    def pseudo_perplexity(self, path: Given = None, progress: Progress | None = None, log: Log = warn) -> float:
        """Return exp of the mean -log p of each token given all other tokens; needs one forward per token."""
        task = self.trainable_task
        with place_of(path, self.run.data) as place:
            return task.pseudo_perplexity(self, Places(place), progress, log)

    def pairs(self, path: Given = None, source: Place = None, target: Place = None, log: Log = warn) -> list[Pair]:
        """Return the run's validation pairs that fit the model, or the pairs of the given files.

        Pairs with an empty side, and pairs of the run that are too long, are left out as in training; `log` receives
        their numbers. In given files, a pair that is too long raises `UserError`: skipping it would change the scores.
        """
        task = self.trainable_task
        if task.pair_scores(self.run) is None:
            raise UserError(f"the run {self.run.name!r} has no pairs; use a sequence-to-sequence model")
        with place_of(path, self.run.data) as place:
            return list(task.evaluation(self, Places(place, source, target), log).records)

    @one_or_list("a text")
    def fill(self, text: Sequence[str], /, n: int = 5, **settings: Any) -> list[Filling]:
        """Fill the `[MASK]` tokens of one or several texts: an encoder gives candidates, a denoiser writes the text.

        `n` is the number of candidates per mask; `settings` are fields of `BeamConfig` for a denoiser.
        """
        filler = self.filler
        return [filler.fill(one, n, **settings) for one in text]

    @one_or_list("a text, or a pair of texts as a tuple", is_row)
    def classify(self, texts: Sequence[str | tuple[str, str]], log: Log = warn) -> list[dict[str, float]]:
        """Return the probability of each class for each text or pair; a regression model returns its `number`.

        The probabilities of a multi-label model do not sum to 1, because its labels do not exclude each other.
        """
        rows = [(text,) if isinstance(text, str) else text for text in texts]
        return self.classifier.classify(rows, log)

    @one_or_list("a text, or a pair of texts as a tuple", is_row)
    def choose_labels(
        self, texts: Sequence[str | tuple[str, str]], threshold: float, label: str | None = None, log: Log = warn
    ) -> list[list[str]]:
        """Return the labels of each text or pair whose probability is at least `threshold`.

        Of two classes, `label` names the one whose probability is compared; a text gets it or the other class.
        """
        rule = self.classifier.threshold(threshold, label)
        assert rule is not None
        return [rule.chosen(probabilities) for probabilities in self.classify(texts, log)]

    @one_or_list("a sentence, or a list of its words", is_sentence)
    def tag(self, sentences: Sequence[str | Sequence[str]], log: Log = warn) -> list[list[tuple[str, float]]]:
        """Return the most probable tag of every word with its probability; words beyond `max_len` get no tag.

        A sentence is a list of words, or a text with words separated by white space; a list of texts is one sentence.
        """
        rows = [sentence.split() if isinstance(sentence, str) else sentence for sentence in sentences]
        return self._able(self.task.tagger(self), "tag").tag(rows, log)

    def embed(self, texts: str | Sequence[str], log: Log = warn) -> Vectors:
        """Return one vector per text, (N, D); special tokens are added to each text as in training.

        An embedding model returns the output of its `forward`, pooled by its head. Any other model returns the mean of
        the last hidden states: an encoder over all tokens, including special tokens; a causal model over the text's own
        tokens, because the special tokens before the text cannot attend to it. `log` receives the numbers of cut and of
        blank texts; the vector of a blank text is that of the special tokens alone.
        """
        items, is_one = listed(self, texts, "texts", "a text")
        if n := sum(not text.strip() for text in items if isinstance(text, str)):
            are = "is" if n == 1 else "are"
            log(f"{n:,} of {len(items):,} texts {are} blank: a blank text has the vector of its special tokens alone")
        found = self.embedder.embed(items, log)
        return found[0] if is_one else found

    def trace(
        self,
        text: str | Sequence[int] | None = None,
        *,
        source: str | Sequence[int] | None = None,
        target: str | Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        hooks: Mapping[str, "Hook"] | None = None,
    ) -> "Trace":
        """Run the model on a text, or on a source and a target, and return its named inner tensors.

        The names and shapes are those of `glassformer.inspection.capture`; `names` selects some of them, with
        patterns such as `*.weights`. `hooks` replace tensors in this run (see `hooks`). In a `with` block, the tensors
        are released at its end.

            with model.trace("To be, or not to be") as trace:
                trace["decoder.blocks.0.self_attn.weights"]  # (1, H, T, T)
        """
        from glassformer.inspection.capture import STANDARD, capture

        with self.hooks(hooks or {}):
            return capture(self, text, source=source, target=target, names=STANDARD if names is None else names)

    def attention(
        self,
        text: str | Sequence[int] | None = None,
        *,
        source: str | Sequence[int] | None = None,
        target: str | Sequence[int] | None = None,
    ) -> "Trace":
        """Return the attention weights of every layer, by name; a notebook shows them as heat maps.

        `glassformer.plot.attention` draws the heads of a layer, `glassformer.plot.alignment` a source and its target.
        """
        return self.trace(text, source=source, target=target, names=["*.weights"])

    def logit_lens(
        self,
        text: str | Sequence[int] | None = None,
        *,
        source: str | Sequence[int] | None = None,
        target: str | Sequence[int] | None = None,
        norm: bool = True,
    ) -> "LensCells":
        """Return the tokens that the head predicts from the residual stream after each layer (nostalgebraist 2020).

        `norm=False` leaves out the final norm. Raises `UserError` for a model without a residual stream, or without a
        head over tokens.
        """
        from glassformer.inspection.lens import NAMES, logit_lens

        return logit_lens(self, self.trace(text, source=source, target=target, names=NAMES), norm)

    def logit_attribution(
        self,
        text: str | Sequence[int] | None = None,
        token: str | None = None,
        against: str | None = None,
        *,
        source: str | Sequence[int] | None = None,
        target: str | Sequence[int] | None = None,
        position: int | None = None,
    ) -> "Attribution":
        """Return the logit of a token as a sum of terms: embedding, each head, biases, each feed-forward.

        The token is by default the one that the model predicts at the position, by default the last; with `against`,
        the terms are those of the difference of two logits. Raises `UserError` for a recurrent or post-norm model.

            model.logit_attribution("The king is here:", " he", " she")
        """
        from glassformer.inspection.attribution import logit_attribution
        from glassformer.inspection.capture import encoded

        return logit_attribution(self, encoded(self, text, source=source, target=target), token, against, position)

    def strongest_texts(self, texts: Iterable[str | Mapping[str, str]], units: str, k: int = 10) -> "Strongest":
        """Return the k texts in which each head or neuron of a layer is most active, and a random text as baseline.

        `units` is `decoder.0.head`, `cross.0.head` or `decoder.0.neuron`; texts are read one by one.

            found = model.strongest_texts(open("stories.txt"), "decoder.1.neuron")
            found.texts(17)[0].tokens, found.baseline(17)
        """
        from glassformer.inspection.strongest import strongest

        return strongest(self, texts, units, k)

    def hooks(self, hooks: Mapping[str, "Hook"]) -> AbstractContextManager[None]:
        """Call functions with named tensors inside a `with` block, in all methods of this model.

        A hook receives the name and the tensor, and returns a replacement or None. See
        `glassformer.inspection.model_hooks`.
        """
        from glassformer.inspection.capture import model_hooks

        return model_hooks(self, hooks)

    def ablate(
        self, parts: "Part | str | Collection[Part | str] | None" = None, **guessed: Any
    ) -> AbstractContextManager[None]:
        """Switch heads, feed-forwards or layers off inside a `with` block, in all methods of this model.

            with model.ablate("decoder.0.head.3"):
                print(model.score("To be, or not to be").nats_per_token)

        Other parts are named `decoder.0.feed_forward`, `decoder.0` and `cross.1.head.0`. Raises `UserError` for a part
        that the model does not have, and for other arguments, such as a layer and a head as numbers.
        """
        from glassformer.inspection.ablation import ablate

        if parts is None or guessed:
            stack = getattr(self.config, "head_stack_name", "encoder")
            part = f"{stack}.{guessed.get('layer', 0)}.head.{guessed.get('head', 0)}"
            raise UserError(f"ablate takes the names of parts, for a `with` block: with model.ablate({part!r}): …")
        return ablate(self, parts)

    def inspect(self, text: str | None = None, **settings: Any) -> None:
        """Open a page in the browser that shows the inner values of this model; see `glassformer.inspect`."""
        with needs("the inspector", "serve"):
            server = import_module(f"{__package__}.apps.inspector.server")  # by name: the core imports no program
        server.inspect(self, text, **settings)

    @property
    def vectors_are(self) -> str:
        """Description of the vectors that `embed` returns."""
        return self.embedder.description


def _require_encoded(prompts: Sequence[EncodedPrompt]) -> Sequence[EncodedPrompt]:
    """Return encoded prompts; raise `UserError` for other values."""
    for prompt in prompts:
        require_type(prompt, EncodedPrompt, "prompts", "what encode_prompts returns")
    return prompts


def _require_drafts(draft: Any, counts: Any) -> None:
    """Raise `UserError` for a draft model or counts of another type."""
    if not (draft is None or isinstance(draft, Model)):
        raise UserError(f"draft: expected a Model, such as glassformer.load(DIR), got {draft!r:.60}")
    if not (counts is None or isinstance(counts, DraftCounts)):
        raise UserError(f"counts: expected a DraftCounts, which receives numbers of drafts, got {counts!r:.60}")
