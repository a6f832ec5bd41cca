"""`Model`: a trained network with methods that generate, translate, fill, classify, tag, embed and evaluate.

The task of the model (`tasks/`) makes the object that does the work of a method (`inference/`). The files here import
from `inspection`, `tasks` and the packages that these import. Begin with `texts.py`, the methods that write.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import torch

from glassformer.common import files, notebook
from glassformer.common.chat_messages import Message
from glassformer.common.errors import Log, Progress, UserError, no_attribute, once, one_note_per_call, warn
from glassformer.config.run import GENERATION_BATCH
from glassformer.data.in_memory import Given, place_of
from glassformer.data.pairs import Pair
from glassformer.evaluation.compare import describe_model
from glassformer.evaluation.loss import LossReport
from glassformer.inference.chat import Chat, fitting
from glassformer.inference.classify import Vectors
from glassformer.inference.drafts import Drafter
from glassformer.inference.fill import Filling
from glassformer.inference.rows import Settings
from glassformer.inference.score import Score
from glassformer.inference.text import EncodedPrompt
from glassformer.model.inner import OpenModel
from glassformer.model.one_or_list import (
    conversations_of,
    is_row,
    is_sentence,
    listed,
    one_or_list,
    require_text,
    texts_of,
)
from glassformer.model.texts import WritingModel
from glassformer.models.devices import emulation_note
from glassformer.store.model_directory import save_model
from glassformer.tasks.batches import Place, Places
from glassformer.tasks.task import Prompt
from glassformer.tokenization.vocabulary import languages, with_languages
from glassformer.trial.choice import earned_device

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
class Model(WritingModel, OpenModel):
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
            """Raise an error that names the replacement of an attribute of other libraries' models or `nn.Module`."""
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
        where = earned_device(str(device), self.config, warn)
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

    # Texts

    def prompt_ids(self, prompt: Prompt, *, special_tokens: bool = False) -> list[int]:
        """Return the ids of a prompt: a text with the start tokens of training before it, or the given ids unchanged.

        With `special_tokens` (see `generate`), a text that begins with the start tokens gets no second start tokens.
        Raises `UserError` for an empty prompt if the model was trained without start tokens.
        """
        (encoded,) = self.encode_prompts([prompt], slide=True, special_tokens=special_tokens)
        return list(encoded.ids)

    def encode_source(self, text: str) -> list[int]:
        """Return the ids that the encoder reads, including the end token; raise `UserError` for a blank text."""
        require_text([text], "source")
        return self.translator.source_ids(text)

    def encode_target(self, text: str) -> list[int]:
        """Return the decoder's input ids for a target: start token, tokens before every target, tokens of the text."""
        return self.translator.target_ids(text)

    def with_languages(self, source: str | None = None, target: str | None = None) -> Self:
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

    # Conversations

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
        `generate`. The model's chat template formats the messages as in training, and a special token in a message is
        ordinary text. If the context is full, the oldest turns are left out.

        `conversation` keeps the cache between turns. Raises `UserError` for a model without a chat template.
        """
        conversations, is_one = conversations_of(messages)
        if stream and not is_one:
            raise UserError("stream: expected one conversation, got a list; leave out stream")
        if stream:
            return self.conversation(conversations[0]).answer(*self.chat_settings(**settings))
        how, drafter = self.chat_settings(batch_size=batch_size, **settings)
        found = dict(self.writer.finished(self.encode_conversations(how, conversations), how, drafter))
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
        """Return the settings of answers, which end at the chat template's end token, too, and the drafter."""
        return self.text_settings(further_ends=(self.conversation_encoder.end_id,), **settings)

    # Scores, labels and vectors

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
        """Return log p of a text, or of each of several texts.

        With `source`, it is log p of the text given the source, or given the beginning of a text. `score(text,
        source=source)` and `score(source, text)` are equivalent. A causal model also scores a text alone; an
        encoder-decoder needs the source. `log` receives a note if first tokens are not scored (`no_start`). Raises
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

        `loss_only` leaves out the scores, for which targets are generated. Every target counts once. The precision is
        the same as in training, unless the model was loaded with a `dtype`. Text is cut into consecutive windows of the
        context length; pairs are two aligned files, `source` and `target`, or one file, `path`. `path` may also be
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
        """Return the scores on the data of `evaluate`, in percent; no scores for a model that continues a text.

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

        For a model of two classes, `label` is the class whose probability is compared. A text gets this class if its
        probability is high enough, and the other class if not.
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

    @property
    def vectors_are(self) -> str:
        """Description of the vectors that `embed` returns."""
        return self.embedder.description
