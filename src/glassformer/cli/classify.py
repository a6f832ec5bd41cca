"""glassformer classify DIR… "A text" """

from typing import TYPE_CHECKING, Any

from glassformer.cli.inputs_outputs import Loading, Texted, TextsToJson, directories_and_text, no_effect
from glassformer.cli.progress import bar, print_json
from glassformer.cli.translate import cell
from glassformer.errors import UserError, require_integer

if TYPE_CHECKING:
    from glassformer.model import Model


def main(*models: Texted, second: str | None = None, n: int | None = None, texts: TextsToJson, loading: Loading) -> int:
    """Classify texts: print "label TAB probability TAB text" per text, or "number TAB text" for a regression model.

    A JSON object has the probability of every class.

    Args:
        second: The second text of a pair; in a file, put a tab between the two texts of a line.
        n: Number of classes to print per text, the most probable first; by default 1, or all of a multi-label model.

    Examples:
        glassformer classify runs/reviews "A good film."
        glassformer classify runs/reviews --input new.txt --json
    """
    # Arguments
    if n is not None and texts.json_:
        raise no_effect("n", " with --json, which prints every class: remove one of them")
    if n is not None:
        require_integer("n", n, 1, "the number of classes per text")
    directories, text = directories_and_text(models)
    given = texts.read(text)
    if second is not None and given.source is not None:
        raise UserError("--second needs a text on the command line; in a file, put a tab between the two texts")
    model = loading.ensemble(directories, "classify")
    if n is not None and model.is_regression:
        raise no_effect("n", f": {model.name} predicts a number, not classes; remove it")
    # Predictions
    rows = list(given.each(lambda text: _row(text, second, model)))
    with bar("classifying"):
        predicted = model.classify(rows)
    # Output
    empty: dict[str, Any] = {"number": None} if model.is_regression else {}
    for result in given.results(zip(rows, predicted, strict=True)):
        row, values = result or ("", empty)
        if texts.json_:
            print_json({"text": row} | (values if model.is_regression else {"classes": values}))
        elif result is None:
            print()
        else:
            _print(row, values, n, model)
    return 0


def _print(row: str | tuple[str, str], values: dict[str, float], n: int | None, model: "Model") -> None:
    """Print the number of a text, or its most probable classes."""
    shown = cell(row if isinstance(row, str) else "\t".join(row))
    if model.is_regression:
        print(f"{values['number']:.4f}\t{shown}")
        return
    n_shown = n or (len(values) if model.is_multi_label else 1)
    for label, probability in sorted(values.items(), key=lambda item: -item[1])[:n_shown]:
        print(f"{label}\t{probability:.4f}\t{shown}")


def _row(text: str, second: str | None, model: "Model") -> str | tuple[str, str]:
    """Return one text, or two texts if the model reads pairs."""
    if second is not None or not model.takes_pairs:
        return text if second is None else (text, second)
    one, tab, other = text.partition("\t")
    if not tab:
        raise UserError("the model reads pairs of texts; give --second TEXT, or put a tab between the two texts")
    return one, other
