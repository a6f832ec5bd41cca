"""glassformer translate DIR…"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.apps.cli import inputs_outputs
from glassformer.apps.cli.arguments import File
from glassformer.apps.cli.progress import reporting
from glassformer.common import files
from glassformer.config.run import BeamConfig

if TYPE_CHECKING:
    from glassformer.inference.translator import Translation
    from glassformer.model import Model


Search = Annotated[
    dict[str, Any],
    BeamConfig,
    *("beam", "length_penalty", "early_stopping", "max_new_tokens", "repetition_penalty", "no_repeat_ngram_size"),
]


def main(
    *models: inputs_outputs.Texted,
    input: File | None = None,
    output: Path | None = None,
    n_best: int = 1,
    prefix: str = "",
    source_language: str | None = None,
    target_language: str | None = None,
    search: Search,
    loading: inputs_outputs.Loading,
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
        source_language: The language of the sources, for a model with language tokens: eng_Latn (NLLB), en_XX (mBART),
            en (M2M-100); default: that of the imported tokenizer.
        target_language: The language of the targets; default: that of the imported generation settings.

    Examples:
        glassformer translate runs/en-de "A dog runs."
        glassformer translate runs/en-de --input new.en --output new.de
        glassformer translate nllb --target-language deu_Latn "A dog runs."
    """
    directories, text = inputs_outputs.directories_and_text(models)
    loading.find(directories)
    is_typed = text is None and input is None and sys.stdin.isatty()
    given = None
    if not is_typed:
        given = inputs_outputs.GivenTexts.read(text, input)
    if output is not None:
        inputs_outputs.require_output(output, [*directories, input])
    model = loading.ensemble(directories, "translate")
    model.require_source()
    if source_language is not None or target_language is not None:
        model = model.with_languages(source_language, target_language)
    inputs_outputs.require_effect(model, search)
    settings = search | {"n_best": n_best, "prefix": prefix}
    if given is not None:
        _translate(model, given, output, settings)
        return 0
    for source in inputs_outputs.typed_lines("one source per line; an empty line or Ctrl-D ends"):
        if not source.strip():
            break
        with inputs_outputs.reported_errors():
            for translation in model.translations([source], **settings)[0]:
                print(one_line(translation.text) if n_best == 1 else _scored(translation))
    return 0


def _translate(model: "Model", given: inputs_outputs.GivenTexts, output: Path | None, settings: dict[str, Any]) -> None:
    """Write the targets of the given texts to a file, or print them."""
    with reporting() as reporter, reporter.phase("translating") as progress:
        sources = list(given.each(model.encode_source))
        translations = given.results(model.translations_of_ids(sources, progress=progress, **settings))
    if settings["n_best"] == 1:
        targets = [one_line(best[0].text) if best else "" for best in translations]
    else:
        numbered = ((number, target) for number, best in enumerate(translations, 1) for target in best or ())
        targets = [f"{number}\t{_scored(target)}" for number, target in numbered]
    written = "".join(target + "\n" for target in targets)
    if output is None:
        sys.stdout.write(written)
    else:
        files.write_text(output, written)


def _scored(target: "Translation") -> str:
    """Return the score and the text of a target, and a mark if the limit of tokens cut it."""
    return f"{target.hypothesis.score:.4f}\t{cell(target.text)}" + "\tunfinished" * (not target.is_finished)


def one_line(text: str) -> str:
    r"""Replace the line breaks of a text by spaces, so that each input line gives one output line.

    >>> one_line("a\r\nb\nc")
    'a b c'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def cell(text: str) -> str:
    """Replace the line breaks and tabs of a text by spaces, for a column of tab-separated output."""
    return one_line(text).replace("\t", " ")
