"""glassformer translate DIR…"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer import files
from glassformer.cli.arguments import File, Search, read_stdin
from glassformer.cli.inputs_outputs import (
    Loading,
    Texted,
    directories_and_text,
    require_effect,
    require_one,
    require_output,
)
from glassformer.cli.progress import err, reporting
from glassformer.data.formats import lines
from glassformer.errors import UserError

if TYPE_CHECKING:
    from glassformer.model import Model


def main(
    *models: Texted,
    input: File | None = None,
    output: Path | None = None,
    n_best: int = 1,
    prefix: str = "",
    search: Search,
    loading: Loading,
) -> int:
    """Translate every source line to one target line; several models form an ensemble.

    Without a text and --input, read standard input; on a terminal, translate each line when you press Enter.

    Args:
        models: Model directories (several average their probabilities), then a source: the last argument if it is not
            a folder.
        input: A text file with one source per line, or - for standard input.
        output: The file for the targets; default: standard output.
        n_best: Number of targets per source; above 1, each is printed as "line number TAB score TAB target".
        prefix: The beginning of every target.

    Examples:
        glassformer translate runs/en-de "A dog runs."
        glassformer translate runs/en-de --input new.en --output new.de
    """
    settings = search | {"n_best": n_best, "prefix": prefix}
    directories, text = directories_and_text(models)
    require_one(text, input, "--input")
    interactive = text is None and input is None and sys.stdin.isatty()
    sources = [] if interactive else [text] if text is not None else _lines_of(input)
    if output is not None:
        require_output(output, [*directories, input])
    loading.require(directories, "translate")
    model = loading.ensemble(directories)
    model.require_source()
    require_effect(model, search)
    if interactive:
        return _interactive(model, settings)
    with reporting() as reporter, reporter.phase("translating") as progress:
        targets = _translated(model, sources, settings, progress)
    written = "".join(target + "\n" for target in targets)
    if output is None:
        sys.stdout.write(written)
    else:
        files.write_text(output, written)
    return 0


def _lines_of(input: str | None) -> list[str]:
    """Return the lines of a file, or of standard input."""
    return lines(read_stdin() if input in (None, "-") else files.read_text(files.as_path(input, "--input")))


def _translated(model: "Model", sources: list[str], settings: dict[str, Any], progress: Any) -> list[str]:
    """Return the lines to print; an empty source has an empty target."""
    numbers = [number for number, source in enumerate(sources) if source.strip()]
    encoded = [_encoded(model, sources[number], number) for number in numbers]
    found = dict(zip(numbers, model.translations_of_ids(encoded, progress=progress, **settings), strict=True))
    if settings["n_best"] == 1:
        return [one_line(found[n][0].text) if n in found else "" for n in range(len(sources))]
    return [f"{n + 1}\t{t.hypothesis.score:.4f}\t{cell(t.text)}" for n in numbers for t in found[n]]


def one_line(text: str) -> str:
    r"""Replace the line breaks of a text by spaces, so that each input line gives one output line.

    >>> one_line("a\r\nb\nc")
    'a b c'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def cell(text: str) -> str:
    """Replace the line breaks and tabs of a text by spaces, for a column of tab-separated output."""
    return one_line(text).replace("\t", " ")


def _encoded(model: "Model", source: str, number: int) -> list[int]:
    """Return the ids of a source; raise `UserError` with the line number if it cannot be encoded."""
    try:
        return model.encode_source(source)
    except UserError as error:
        raise UserError(f"line {number + 1}: {error}") from error


def _interactive(model: "Model", settings: dict[str, Any]) -> int:
    err("one source per line; an empty line or Ctrl-D ends")
    while True:
        try:
            source = input("> ")
        except EOFError:
            return 0
        if not source.strip():
            return 0
        try:
            for translation in model.translations([source], **settings)[0]:
                score = f"{translation.hypothesis.score:.4f}\t" if settings["n_best"] > 1 else ""
                print(score + one_line(translation.text))
        except UserError as error:
            err(f"glassformer: {error}")
