"""glassformer classify DIR "A text" """

from typing import TYPE_CHECKING, Any

from glassformer.apps.cli.arguments import Dir
from glassformer.apps.cli.inputs_outputs import Loading, TextsToJson, no_effect
from glassformer.apps.cli.progress import bar, print_json
from glassformer.apps.cli.translate import cell
from glassformer.common.errors import UserError, require_integer

if TYPE_CHECKING:
    from glassformer.inference.classify import Threshold
    from glassformer.model import Model


def main(
    directory: Dir,
    text: str | None = None,
    /,
    *,
    second: str | None = None,
    n: int | None = None,
    threshold: float | None = None,
    label: str | None = None,
    texts: TextsToJson,
    loading: Loading,
) -> int:
    """Classify texts: print "label TAB probability TAB text" per text, or "number TAB text" for a regression model.

    A JSON object has the probability of every class, and with a threshold the labels that are chosen.

    Args:
        second: The second text of a pair; in a file, put a tab between the two texts of a line.
        n: Number of classes to print per text, the most probable first; by default 1, or all of a multi-label model.
        threshold: Print the labels of at least this probability (a text without any has a dash); of two classes, print
            the class of --label if it has this probability, and otherwise the other class.
        label: The class, of two, whose probability is compared with the threshold.

    Examples:
        glassformer classify runs/reviews "A good film."
        glassformer classify runs/reviews --input new.txt --json
    """
    # Arguments
    if n is not None and texts.json_:
        raise no_effect("n", " with --json, which prints every class: remove one of them")
    if n is not None:
        require_integer("n", n, 1, "the number of classes per text")
    if n is not None and threshold is not None:
        raise no_effect("n", " with --threshold, which chooses the labels: remove one of them")
    loading.find([directory])
    given = texts.read(text)
    if second is not None and given.source is not None:
        raise UserError("--second needs a text on the command line; in a file, put a tab between the two texts")
    model = loading.ensemble([directory], "classify")
    if n is not None and model.is_regression:
        raise no_effect("n", f": {model.name} predicts a number, not classes; remove it")
    rule = model.classifier.threshold(threshold, label)
    # Predictions
    rows = list(given.each(lambda text: _row(text, second, model)))
    with bar("classifying"):
        predicted = model.classify(rows)
    # Output
    empty: dict[str, Any] = {"number": None} if model.is_regression else {}
    for result in given.results(zip(rows, predicted, strict=True)):
        row, values = result or ("", empty)
        if texts.json_:
            chosen = {} if rule is None else {"labels": rule.chosen(values) if values else []}
            print_json({"text": row} | (values if model.is_regression else {"classes": values} | chosen))
        elif result is None:
            print()
        else:
            _print(row, values, n, rule, model)
    return 0


def _print(
    row: str | tuple[str, str], values: dict[str, float], n: int | None, rule: "Threshold | None", model: "Model"
) -> None:
    """Print the number of a text, its most probable classes, or the classes that a threshold chooses."""
    shown = cell(row if isinstance(row, str) else "\t".join(row))
    if model.is_regression:
        print(f"{values['number']:.4f}\t{shown}")
        return
    n_shown = n or (len(values) if model.is_multi_label else 1)
    if rule is not None:
        values = {name: values[name] for name in rule.chosen(values)}
        n_shown = len(values)
        if not values:
            print(f"–\t–\t{shown}")
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
