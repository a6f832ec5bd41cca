"""glassformer generate DIR"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from glassformer.apps.cli import inputs_outputs
from glassformer.apps.cli.arguments import Dir, File, Sampling
from glassformer.apps.cli.progress import err, json_of, reporting
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.run import GENERATION_BATCH, SHAPES_LOGITS, BeamConfig
from glassformer.config.schema import setting
from glassformer.data.formats import lines

if TYPE_CHECKING:
    from glassformer.inference.text import EncodedPrompt
    from glassformer.model import Model


Encode: TypeAlias = "Callable[[list[str]], list[EncodedPrompt]]"


@dataclass(frozen=True)
class Prompts:
    """Prompts and samples."""

    is_usual: ClassVar[bool] = True
    prompt: str | None = setting(None, "The prompt, as an option.")
    input: File | None = setting(
        None,
        "A file of prompts, or - for standard input; the output is jsonl. Each line is a prompt, or an object "
        '{"prompt": "…"} if the first line begins with {. A blank line has no text.',
    )
    output: Path | None = setting(None, "The jsonl file to write; default: standard output.")
    n: int = setting(1, "Number of samples per prompt; each has its own random numbers.")
    sample: int = setting(
        0, "Index of the first sample to draw, from 0; the same index and seed draw the same sample again."
    )
    context: Literal["refuse", "slide"] = setting(
        "refuse",
        "What to do when the text exceeds the model's context: refuse = reject a long prompt and stop when the context "
        "is full; slide = drop the older half.",
    )
    batch_size: int | None = setting(
        None,
        "Number of rows (prompts × samples) of --input at a time, 32 by default; more are faster and need more memory.",
    )
    special_tokens: bool = setting(
        False,
        "Read special tokens written in a prompt, such as <|im_start|>, as these tokens; without this option they are "
        "ordinary text.",
    )
    chat: bool = setting(False, "Answer each prompt as the message of a user, by the chat template of the model.")

    @property
    def slides(self) -> bool:
        return self.context == "slide"

    def require_fit(self) -> None:
        """Raise `UserError` for options that exclude each other."""
        if self.output is not None and self.input is None:
            raise UserError(
                "--output is for --input FILE.jsonl; the text of a prompt is printed: write it to a file with >"
            )
        if self.batch_size is not None and self.input is None:
            raise UserError("--batch-size is for --input FILE.jsonl; all samples of a prompt are drawn together")
        if self.chat and (self.special_tokens or self.slides):
            raise UserError("--chat reads a prompt as a message: remove --special-tokens, or --context slide")


Beams = Annotated[dict[str, Any], BeamConfig, "beam", "length_penalty"]


def main(
    directory: Dir,
    text: str | None = None,
    /,
    *,
    given: Prompts,
    sampling: Sampling,
    beams: Beams,
    loading: inputs_outputs.Drafting,
) -> int:
    """Generate text with a trained model; without a prompt, read prompts from the terminal.

    With --beam, the texts are the most probable ones that a beam search finds, best first, with their scores.

    Args:
        text: The text to continue, the prompt; "" is an empty prompt.

    Examples:
        glassformer generate runs/mybook "It was" --temperature 0.8
        glassformer generate runs/mybook "It was" --beam 4 --n 2
        glassformer generate runs/mybook --input prompts.txt --output texts.jsonl
    """
    # Arguments
    prompt = inputs_outputs.same_text(text, given.prompt, "--prompt")
    inputs_outputs.require_one(prompt, given.input, "--input")
    given.require_fit()
    loading.find([directory])
    if given.input is None and prompt is None and not sys.stdin.isatty():
        raise UserError("no prompt given: give a text or --input FILE, or run on a terminal")
    prompts: list[str | None] = []
    if given.input is not None:
        prompts = _prompts(given.input)
    if given.output is not None:
        inputs_outputs.require_output(given.output, [directory, loading.draft, given.input])
    loading.require_draft(sampling)
    # Models
    model = loading.ensemble([directory], "chat" if given.chat else "generate")
    _require_effect(model, sampling, beams, given.sample)
    from glassformer.inference.drafts import DraftCounts

    counts = DraftCounts()
    settings = sampling | beams | {"n": given.n} | loading.draft_model()
    of_samples = {"sample": given.sample, "slide": given.slides, "counts": None if beams else counts}
    settings |= {name: value for name, value in of_samples.items() if value or not beams}
    # How prompts are read
    encode: Encode = partial(_encoded, model, given.special_tokens, given.slides)
    write = _write_best if beams else _write
    if given.chat:
        how, _ = model.chat_settings(**settings)
        settings["further_ends"] = how.end_ids
        encode = partial(model.encode_conversations, how)
    # Texts
    if given.input is not None:
        settings["batch_size"] = GENERATION_BATCH
        if given.batch_size is not None:
            settings["batch_size"] = given.batch_size
        _write_file(model, prompts, given.output, encode, settings)
    elif prompt is not None:
        write(model, prompt, encode, settings, begins_with_prompt=not given.chat)
    else:
        for prompt in inputs_outputs.typed_lines("type the beginning of a text and press Enter; Ctrl-D ends"):
            with inputs_outputs.reported_errors():
                if prompt:
                    write(model, prompt, encode, settings, begins_with_prompt=not given.chat)
    if counts.n_drafted:
        err(str(counts))
    return 0


def _require_effect(model: "Model", sampling: Mapping[str, Any], beams: Mapping[str, Any], sample: int) -> None:
    """Raise `UserError` for an option of beam search without beams, or an option of sampling at temperature 0."""
    if beams.get("beam", 1) == 1:
        for option in beams.keys() - {"beam"}:
            raise inputs_outputs.no_effect(option, " without beams: remove it, or set --beam above 1")
    if beams:
        return  # the search refuses settings of samples
    changes_greedy = ("temperature", "repetition_penalty")
    given = [name for name in (*SHAPES_LOGITS, "seed") if name in sampling and name not in changes_greedy]
    if sample > 0:
        given.append("sample")
    if given and sampling.get("temperature", getattr(model.generation, "temperature", None)) == 0:
        why = " at temperature 0, which takes the most probable token: remove it, or set --temperature above 0"
        raise inputs_outputs.no_effect(given[0], why)


def _write(model: "Model", prompt: str, encode: Encode, settings: dict[str, Any], *, begins_with_prompt: bool) -> None:
    """Stream one sample to the terminal, or print several with their numbers; notes go to standard error."""
    [encoded] = encode([prompt])
    n, n_new, texts = settings["n"], 0, [prompt * begins_with_prompt] * settings["n"]
    for n_new, pieces in enumerate(model.writer.stream([encoded], *model.text_settings(**settings))):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        if n == 1:
            print(texts[0] if n_new == 0 else pieces[0], end="", flush=True)
    if n == 1:
        print()
    else:
        print(*(f"--- sample {number}\n{text}" for number, text in enumerate(texts, settings["sample"])), sep="\n")
    max_len = model.network.config.max_len
    if len(encoded.ids) + n_new > max_len:
        what = "is full; --context slide continues beyond it"
        if settings["slide"]:
            what = "slid: its older half was dropped"
        err(f"the context of {max_len} tokens {what}")


def _write_best(
    model: "Model", prompt: str, encode: Encode, settings: dict[str, Any], *, begins_with_prompt: bool
) -> None:
    """Print the best continuation, or several with their scores."""
    from glassformer.inference.continuations import best_continuations

    [best] = best_continuations(model.writer, encode([prompt]), **settings)
    for one in best:
        if settings["n"] > 1:
            print(f"--- score {one.hypothesis.score:.4f}")
        print(prompt * begins_with_prompt + one.text)


def _encoded(model: "Model", special_tokens: bool, slide: bool, prompts: list[str]) -> "list[EncodedPrompt]":
    """Encode the prompts; print a note for each prompt whose beginning is dropped."""
    encoded = model.encode_prompts(prompts, slide=slide, special_tokens=special_tokens)
    max_len = model.network.config.max_len
    for n_tokens in (len(prompt.ids) for prompt in encoded):
        if n_tokens > max_len:
            n = n_tokens - max_len
            err(f"the prompt has {n_tokens} tokens; the first {n} do not fit the context and are dropped")
    return encoded


def _write_file(
    model: "Model", prompts: list[str | None], output: Path | None, encode: Encode, settings: dict[str, Any]
) -> None:
    """Write one JSON object per prompt, in order; with several samples, one object per sample, with its number.

    With beams, each object is a continuation with its score, best first.
    """
    from glassformer.inference.continuations import best_continuations

    filled, n = [prompt for prompt in prompts if prompt is not None], settings["n"]
    written: list[str] = []
    are_shown = output is None and sys.stdout.isatty()  # the lines are the progress
    with reporting(is_quiet=are_shown) as reporter, reporter.phase("generating") as progress:
        blank: list[dict[str, Any]] = [{"text": ""}]
        if "beam" in settings:
            best = best_continuations(model.writer, encode(filled), **settings)
            found = ([{"text": one.text, "score": one.hypothesis.score} for one in of_prompt] for of_prompt in best)
        else:
            if n > 1:
                blank = [{"sample": sample, "text": ""} for sample in range(settings["sample"], settings["sample"] + n)]
            rows = model.writer.finished(encode(filled), *model.text_settings(**settings))
            texts = _in_order(rows, lambda n_done: progress(n_done, n * len(filled)))
            found = ([fields | {"text": next(texts)} for fields in blank] for _ in filled)
        for number, prompt in enumerate(prompts, 1):
            for fields in blank if prompt is None else next(found):
                record = {"prompt": prompt or "", **fields}
                written.append(json_of(record) + "\n")
                if output is None:
                    print(written[-1], end="", flush=True)
            if "beam" in settings:
                progress(number, len(prompts))
    if output is not None:
        files.write_text(output, "".join(written))


def _in_order(rows: Iterable[tuple[int, str]], progress: Callable[[int], None]) -> Iterator[str]:
    """Yield the texts of rows in the order of their numbers. `rows` has (number, text) in the order of ends."""
    texts: dict[int, str] = {}
    n_yielded = 0
    for number, text in rows:
        texts[number] = text
        progress(n_yielded + len(texts))
        while n_yielded in texts:
            yield texts.pop(n_yielded)
            n_yielded += 1


def _prompts(source: str) -> list[str | None]:
    """Return the prompts of a file, in order; None for a blank line of a text, which has no prompt."""
    given = lines(inputs_outputs.input_text(source))
    if not any(line.strip() for line in given):
        raise UserError(f'{source} has no prompt; write one per line, or objects with a text field "prompt"')
    if not next(line for line in given if line.strip()).lstrip().startswith("{"):
        return [line if line.strip() else None for line in given]
    prompts: list[str | None] = []
    for number, line in enumerate(given, 1):
        if not line.strip():
            continue
        where = f"line {number} of {'standard input' if source == '-' else source}"
        try:
            record = files.parse_json(line)
        except ValueError as error:
            raise UserError(f'{where} is not JSON ({error}); each line must be {{"prompt": "…"}}') from error
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
            raise UserError(f'{where} has no text field "prompt"')
        prompts.append(record["prompt"])
    return prompts
