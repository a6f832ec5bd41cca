"""glassformer generate DIR"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer import files
from glassformer.cli.arguments import Dir, File, Sampling, read_stdin
from glassformer.cli.inputs_outputs import Loading, require_one, require_output, same_text
from glassformer.cli.progress import err, reporting
from glassformer.config.run import GENERATION_BATCH
from glassformer.data.formats import lines
from glassformer.errors import UserError
from glassformer.store import checkpoint

if TYPE_CHECKING:
    from glassformer.inference.text import EncodedPrompt
    from glassformer.model import Model


def main(
    directory: Dir,
    text: str | None = None,
    /,
    *,
    prompt: str | None = None,
    input: File | None = None,
    output: Path | None = None,
    n: int = 1,
    sample: int = 0,
    context: Literal["refuse", "slide"] = "refuse",
    batch_size: int | None = None,
    draft: Path | None = None,
    special_tokens: bool = False,
    sampling: Sampling,
    loading: Loading,
) -> int:
    """Generate text with a trained model; without a prompt, read prompts from the terminal.

    Args:
        directory: The model directory.
        text: The text to continue, the prompt; "" is an empty prompt.
        prompt: The prompt, as an option.
        input: A file of prompts, or - for standard input; the output is jsonl. Each line is a prompt, or an object
            {"prompt": "…"} if the first line begins with {. A blank line has no text.
        output: The jsonl file to write; default: standard output.
        n: Number of samples per prompt; each has its own random numbers.
        sample: Index of the first sample to draw, from 0; the same index and seed draw the same sample again.
        context: What to do when the text exceeds the model's context: refuse = reject a long prompt and stop when the
            context is full; slide = drop the older half.
        batch_size: Number of rows (prompts × samples) of --input at a time, 32 by default; more are faster and need
            more memory.
        draft: The directory of a smaller model with the same tokenizer; it proposes --draft-tokens tokens per step.
        special_tokens: Read special tokens written in a prompt, such as <|im_start|>, as these tokens; without this
            option they are ordinary text.

    Examples:
        glassformer generate runs/mybook "It was" --temperature 0.8
        glassformer generate runs/mybook --input prompts.txt --output texts.jsonl
    """
    prompt = same_text(text, prompt, "--prompt")
    require_one(prompt, input, "--input")
    if output is not None and input is None:
        raise UserError(
            "--output is for --input FILE.jsonl; the text of a prompt is printed: write it to a file with >"
        )
    if batch_size is not None and input is None:
        raise UserError("--batch-size is for --input FILE.jsonl; all samples of a prompt are drawn together")
    if "draft_tokens" in sampling and draft is None:
        raise UserError("--draft-tokens is for --draft DIR; --prompt-lookup K has its own number of tokens, K")
    if input is None and prompt is None and not sys.stdin.isatty():
        raise UserError("no prompt given: give a text or --input FILE, or run on a terminal")
    prompts = None if input is None else _prompts(input)
    if prompts is not None and not any(one is not None for one in prompts):
        raise UserError(f'{input} has no prompt; write one per line, or objects with a text field "prompt"')
    if output is not None:
        require_output(output, [directory, draft, input])
    if draft is not None:
        checkpoint.find(draft)
    loading.require([directory], "generate")
    model = loading.model(directory)
    _require_effect(model, sampling, sample)
    from glassformer.inference.drafters import DraftCounts

    counts = DraftCounts()
    how = {"slide": context == "slide", "special_tokens": special_tokens}
    settings = sampling | {"draft": draft and replace(loading, checkpoint=None).model(draft), "counts": counts}
    samples = range(sample, sample + n)
    if prompts is not None:
        n_rows = GENERATION_BATCH if batch_size is None else batch_size
        _from_file(model, prompts, output, samples, how, n_rows, settings)
    elif prompt is not None:
        _write(model, prompt, samples, how, settings)
    else:
        _converse(model, samples, how, settings)
    if counts.n_drafted:
        err(str(counts))
    return 0


def _require_effect(model: "Model", sampling: Mapping[str, Any], sample: int) -> None:
    """Raise `UserError` for an option of sampling at temperature 0, where nothing is drawn."""
    given = [name for name in ("top_k", "top_p", "min_p", "seed") if name in sampling] + ["sample"] * (sample > 0)
    if given and sampling.get("temperature", getattr(model.generation, "temperature", None)) == 0:
        raise UserError(
            f"--{given[0].replace('_', '-')} has no effect at temperature 0, which takes the most probable token: "
            "remove it, or set --temperature above 0"
        )


def _write(model: "Model", prompt: str, samples: range, how: dict[str, bool], settings: dict[str, Any]) -> None:
    """Stream one sample to the terminal, or print several with their numbers; notes go to standard error."""
    [encoded] = _encoded(model, [prompt], how)
    n_new, texts = 0, [prompt] * len(samples)
    steps = model.stream_encoded([encoded], n=len(samples), sample=samples.start, slide=how["slide"], **settings)
    for n_new, pieces in enumerate(steps):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        if len(samples) == 1:
            print(texts[0] if n_new == 0 else pieces[0], end="", flush=True)
    if len(samples) == 1:
        print()
    else:
        print(*(f"--- sample {number}\n{text}" for number, text in zip(samples, texts, strict=True)), sep="\n")
    max_len = model.network.config.max_len
    if len(encoded.ids) + n_new > max_len:
        what = "slid: its older half was dropped" if how["slide"] else "is full; --context slide continues beyond it"
        err(f"the context of {max_len} tokens {what}")


def _encoded(model: "Model", prompts: list[str], how: dict[str, bool]) -> "list[EncodedPrompt]":
    """Encode the prompts; print a note for each prompt whose beginning is dropped."""
    encoded, max_len = model.encode_prompts(prompts, **how), model.network.config.max_len
    for n_tokens in (len(prompt.ids) for prompt in encoded):
        if n_tokens > max_len:
            n = n_tokens - max_len
            err(f"the prompt has {n_tokens} tokens; the first {n} do not fit the context and are dropped")
    return encoded


def _converse(model: "Model", samples: range, how: dict[str, bool], settings: dict[str, Any]) -> None:
    err("type the beginning of a text and press Enter; Ctrl-D ends")
    while True:
        try:
            prompt = input("> ")
        except EOFError:
            print()
            return
        if not prompt:
            continue
        try:
            _write(model, prompt, samples, how, settings)
        except UserError as error:
            err(f"glassformer: {error}")


def _prompts(source: str) -> list[str | None]:
    """Return the prompts of a file, in order; None for a blank line of a text, which has no prompt."""
    given = lines(read_stdin() if source == "-" else files.read_text(files.as_path(source, "--input")))
    if not next((line for line in given if line.strip()), "").lstrip().startswith("{"):
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


def _from_file(
    model: "Model",
    prompts: list[str | None],
    output: Path | None,
    samples: range,
    how: dict[str, bool],
    batch_size: int,
    settings: dict[str, Any],
) -> None:
    """Write one JSON object per prompt, in order; with several samples, one per sample with its number."""
    filled, n = [prompt for prompt in prompts if prompt is not None], len(samples)
    numbers = iter(range(len(filled) * n))
    order = [
        (prompt or "", sample, -1 if prompt is None else next(numbers)) for prompt in prompts for sample in samples
    ]
    encoded = _encoded(model, filled, how)
    rows = model.generate_encoded(
        encoded, n=n, sample=samples.start, slide=how["slide"], batch_size=batch_size, **settings
    )
    texts = {-1: ""}  # by number of the row; -1 is a blank line
    written: list[str] = []
    are_shown = output is None and sys.stdout.isatty()  # the lines are the progress
    with reporting(is_quiet=are_shown) as reporter, reporter.phase("generating") as progress:
        for n_done, (number, text) in enumerate(rows, 1):
            texts[number] = text
            while len(written) < len(order) and order[len(written)][2] in texts:
                prompt, sample, row = order[len(written)]
                record = {"prompt": prompt} | ({"sample": sample} if n > 1 else {}) | {"text": texts[row]}
                written.append(json.dumps(record, ensure_ascii=False) + "\n")
                if output is None:
                    print(written[-1], end="", flush=True)
            progress(n_done, len(filled) * n)
    if output is not None:
        files.write_text(output, "".join(written))
