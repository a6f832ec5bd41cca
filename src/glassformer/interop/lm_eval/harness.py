"""`GlassformerLM`: a glassformer model for lm-evaluation-harness, with the same conventions as the harness's `hf`."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from glassformer import api
from glassformer.config.run import CONSTRAINTS, SHAPES_LOGITS, GenerationConfig
from glassformer.errors import UserError, did_you_mean
from glassformer.inference import score
from glassformer.inference.contexts import Ids

ARGUMENTS = ("path", "step", "device", "batch_size", "max_batch_size", "prefix_token_id")
SAMPLING = (*SHAPES_LOGITS, *CONSTRAINTS, "seed")
"""Sampling settings that a task may define, besides its stop strings."""

MAX_NEW_TOKENS = 256
"""Default for a task that defines no limit; the same as in the harness."""

NO_ID = -1
"""Placeholder, where the harness needs an id and the model has no such token."""

CUT = "\ufdd3"
"""Mark in a rendered conversation after the last message, which the model continues; no text has this code point."""

Pair = tuple[tuple[str, str], list[int], list[int]]
"""Texts of a context and its continuation, ids of the context, ids of the continuation."""

logger = logging.getLogger(__name__)


@register_model("glassformer")
class GlassformerLM(TemplateLM):  # type: ignore[misc]
    """A causal language model in a model directory, for `lm_eval.simple_evaluate(model=…)` and its command line.

    `model_args`: `path` (the model directory), `step` (one of its checkpoints), `device` (auto, cpu, cuda, cuda:N,
    mps), `batch_size` (rows per batch; auto: as many as fit 2,048 positions, at most `max_batch_size`),
    `prefix_token_id` (the id before the first token of a text without a context). By default, `prefix_token_id` is the
    start token of training, or the beginning or end token of an imported tokenizer, as in the harness's `hf`. A model
    that glassformer trained without a start token has no such id: the first token of a text is then not scored, and a
    warning is logged. Special tokens in a text are ordinary text, until the harness applies the chat template
    (`--apply_chat_template`): from then on they are recognised. End tokens are the only ones ever generated.
    """

    def __init__(
        self,
        path: str = "",
        *,
        step: int | None = None,
        device: str = "auto",
        batch_size: int | str = "auto",
        max_batch_size: int = 64,
        prefix_token_id: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        for name in unknown:
            raise UserError(f"unknown model argument {name!r}: {did_you_mean(name, ARGUMENTS)}")
        if path == "":
            raise UserError("path is missing: give --model_args path=DIR")
        self.is_auto = str(batch_size).startswith("auto")
        if self.is_auto:
            batch_size = max_batch_size
        elif not (str(batch_size).isdecimal() and int(batch_size)):
            raise UserError(f"batch_size: expected a number of rows or auto, got {batch_size!r}")
        self.model = api.load(str(path), step=step, device=device)
        if self.model.is_seq2seq or not self.model.is_causal_lm:
            raise UserError(
                f"{path} is not a causal language model (objective {self.model.run.objective.kind}): the harness's "
                "tasks need a decoder-only model that was trained with the objective causal"
            )
        vocab_size = self.model.tokenizer.vocab_size
        if prefix_token_id is not None and not 0 <= prefix_token_id < vocab_size:
            raise UserError(f"prefix_token_id: expected 0 to {vocab_size - 1}, got {prefix_token_id}")
        self.batch_size = int(batch_size)
        self.max_len = self.model.network.config.max_len
        self.is_chat = False
        """True as soon as the harness applies the chat template."""
        self.start = self._start(prefix_token_id)
        self._device = self.model.device

    def _start(self, prefix_token_id: int | None) -> list[int]:
        """Return the ids before the first token of a text without a context."""
        tokenizer = self.model.tokenizer
        if prefix_token_id is not None:
            return [prefix_token_id]
        if before := self.model.writer.before:
            return before
        if tokenizer.is_imported and tokenizer.start_id is not None:  # imported: the harness's rule
            return [tokenizer.start_id]
        logger.warning(f"{self.model.no_start}; prefix_token_id=ID sets the token before it")
        return []

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Self:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Self:
        """Create the model from `--model_args`, which override `--device`, `--batch_size` and `--max_batch_size`.

        Without `--device` the harness passes cuda:0; without CUDA this means auto, as for the harness's `hf`.
        """
        flags = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if flags.get("device") == "cuda:0" and not torch.cuda.is_available():
            del flags["device"]
        return cls(**(flags | arg_dict))

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text; `NO_ID` without such a token."""
        end = self.model.tokenizer.eos_id
        return NO_ID if end is None else end

    @property
    def prefix_token_id(self) -> int:
        """The id that the harness puts before a continuation without a context; `NO_ID` without a start token."""
        return self.start[-1] if self.start else NO_ID

    @property
    def tokenizer_name(self) -> str:
        """The key of the tokenizer in the harness's cache of requests.

        The harness reads it only when it applies the chat template, also if the requests come from the cache.
        """
        self.is_chat = True
        return self.model.tokenizer.fingerprint

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the model's chat template, for the harness's report."""
        if isinstance(chat_template, str):
            raise UserError(f"--apply_chat_template {chat_template}: remove the name; the default template is used")
        return self.model.conversation_encoder.template.source

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of messages; without the prompt of an answer, it ends with the text of the last message.

        If the template refuses the messages, they are rendered without those of the system, as by the harness's `hf`.
        """
        self.is_chat = True
        template, messages = self.model.conversation_encoder.template, chat_history
        if not add_generation_prompt:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": f"{last['content']}{CUT} "}]
        try:
            text = template.render(messages, asks=add_generation_prompt)
        except UserError as error:
            others = [message for message in messages if message["role"] != "system"]
            if others == messages:
                raise
            logger.warning(f"{error}: the messages of the system are left out")
            text = template.render(others, asks=add_generation_prompt)
        if add_generation_prompt:
            return text
        before, mark, after = text.rpartition(CUT)
        if not mark:
            raise UserError("the chat template leaves out the last message, so a model cannot continue it")
        return before if after.startswith(" ") else before.rstrip()

    @property
    def _allowed(self) -> tuple[str, ...]:
        """The special tokens that are recognised in a text."""
        return self.model.tokenizer.special_tokens if self.is_chat else ()

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self.model.tokenizer.encode(string, allow_special=self._allowed)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        before, target = score.split_pair(self.model.tokenizer, context, continuation, self._allowed)
        return self.model.writer.after_start(before, self.is_chat), target

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **others: Any
    ) -> list[tuple[float, bool]]:
        """Return (log-probability, True if greedy) per continuation; contexts that are too long are left-truncated."""
        whole = [score.with_context([i for i in context if i != NO_ID], target) for _, context, target in requests]
        pairs = [score.fit_context(context, target, self.max_len) for context, target in whole]
        n_cut = sum(len(before) < len(context) for (before, _), (context, _) in zip(pairs, whole, strict=True))
        if n_cut:
            logger.warning(f"{n_cut:,} of {len(pairs):,} contexts are left-truncated to fit {self.max_len:,} tokens")
        answers = [(float(s.log_prob), s.is_greedy) for s in self._scores(pairs, "loglikelihood", disable_tqdm)]
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probabilities of whole texts, computed window by window."""
        texts = [request.args[0] for request in requests]
        encoded = self.model.tokenizer.encode_batch(texts, allow_special=self._allowed)
        rows = [list(score.windows(ids, self.start, self.max_len)) for ids in encoded]
        scores = iter(self._scores([pair for row in rows for pair in row], "loglikelihood_rolling", disable_tqdm))
        log_probs = [float(sum(next(scores).log_prob for _ in row)) for row in rows]
        for text, log_prob in zip(texts, log_probs, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), log_prob)
        return log_probs

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate a text after each context; requests with equal settings share batches.

        Repetitions of the same request get different seeds, since the samples of a row depend only on its seed.
        """
        groups: dict[GenerationConfig, list[int]] = {}
        asked: Counter[tuple[str, GenerationConfig]] = Counter()
        for i, request in enumerate(requests):
            context, settings = request.args
            config = self._settings(settings)
            groups.setdefault(replace(config, seed=config.seed + asked[context, config]), []).append(i)
            asked[context, config] += 1
        prompts = [self.model.prompt_ids(request.args[0], special_tokens=self.is_chat) for request in requests]
        continuations = [""] * len(requests)
        with self._progress(len(requests), "generate_until", disable_tqdm) as bar:
            for config, rows in groups.items():
                room = self.max_len - config.max_new_tokens
                rows.sort(key=lambda i: -len(prompts[i]))  # an out-of-memory error occurs at the start
                encoded = self.model.encode_prompts([prompts[i][-room:] for i in rows])
                texts = self.model.generate_encoded(encoded, batch_size=self.batch_size, **asdict(config))
                for i, text in texts:
                    continuations[rows[i]] = text
                    self.cache_hook.add_partial("generate_until", requests[rows[i]].args, text)
                    bar.update()
        return continuations

    def _settings(self, of_task: dict[str, Any]) -> GenerationConfig:
        """Convert a task's generation settings to glassformer's; of the model directory, only end tokens are used."""
        settings = dict(normalize_gen_kwargs(of_task, MAX_NEW_TOKENS))
        until, n, draws = settings.pop("until"), settings.pop("max_gen_toks"), settings.pop("do_sample")
        if settings.get("num_beams") == 1:
            del settings["num_beams"]
        if n >= self.max_len:
            raise UserError(
                f"the task needs up to {n:,} new tokens, but the model's context is {self.max_len:,}: give "
                "--gen_kwargs max_gen_toks=N with N well below the context"
            )
        if other := set(settings) - set(SAMPLING):
            raise UserError(f"the task's setting {min(other)} is not supported (known: {', '.join(SAMPLING)})")
        settings.setdefault("temperature", float(bool(draws)))
        ends = self.model.generation.end_ids
        return GenerationConfig(max_new_tokens=n, stop=tuple(until), end_ids=ends, **settings)

    def _scores(self, pairs: Sequence[tuple[Ids, Ids]], what: str, quiet: bool) -> list[score.ForcedScore]:
        scores = [score.ForcedScore([]) for _ in pairs]
        sizes = [len(context) + len(target) for context, target in pairs]
        max_tokens = score.MAX_TOKENS if self.is_auto else self.batch_size * (self.max_len + 1)
        with self._progress(len(pairs), what, quiet) as bar:
            longest_first = sorted(range(len(pairs)), key=lambda i: -sizes[i])  # an out-of-memory error occurs early
            for begin in range(0, len(pairs), self.batch_size):
                batch = longest_first[begin : begin + self.batch_size]
                contexts, targets = zip(*(pairs[i] for i in batch), strict=True)
                of_batch = score.continuation_scores(
                    self.model.network, contexts, targets, device=self.model.device, max_tokens=max_tokens
                )
                for i, one in zip(batch, of_batch, strict=True):
                    scores[i] = one
                bar.update(len(batch))
        return scores

    def _progress(self, n: int, what: str, quiet: bool) -> Any:
        return tqdm(total=n, desc=f"glassformer: {what}", disable=quiet)
