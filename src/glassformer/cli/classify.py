"""glassformer classify DIR… "A text" """

import json
from typing import TYPE_CHECKING, Any

from glassformer.cli.inputs_outputs import Loading, Texted, directories_and_text, given_texts
from glassformer.cli.progress import bar
from glassformer.cli.translate import cell
from glassformer.errors import UserError, require_integer

if TYPE_CHECKING:
    from glassformer.model import Model


def main(
    *models: Texted,
    second: str | None = None,
    input: str | None = None,
    n: int | None = None,
    json_: bool = False,
    loading: Loading,
) -> int:
    """Classify texts: print "label TAB probability TAB text" per text, or "number TAB text" for a regression model.

    Args:
        models: Model directories (several form an ensemble), then the text: the last argument if it is not a folder.
        second: The second text of a pair; in a file, put a tab between the two texts of a line.
        input: A file with one text per line, or - for standard input, which is the default if no text is given. A
            blank line gives an empty line, or no class.
        n: Number of classes to print per text, the most probable first; by default 1, or all of a multi-label model.
        json_: Print one JSON object per text, with the probability of every class.

    Examples:
        glassformer classify runs/reviews "A good film."
        glassformer classify runs/reviews --input new.txt --json
    """
    if n is not None and json_:
        raise UserError("--n has no effect with --json, which prints every class: remove one of them")
    if n is not None:
        require_integer("n", n, 1, "the number of classes per text")
    directories, text = directories_and_text(models)
    given = given_texts(text, input)
    if second is not None and given.source is not None:
        raise UserError("--second needs a text on the command line; in a file, put a tab between the two texts")
    loading.require(directories, "classify")
    model = loading.ensemble(directories)
    if n is not None and model.is_regression:
        raise UserError(f"--n has no effect: {model.name} predicts a number, not classes; remove it")
    rows = {}
    for place, one in given.filled.items():
        with given.at(place):
            rows[place] = _row(one, second, model)
    with bar("classifying") as log:
        classes = dict(zip(rows, model.classify(list(rows.values()), log=log), strict=True))
    for place in range(len(given.texts)):
        if place not in rows:
            empty: dict[str, Any] = {"number": None} if model.is_regression else {"classes": {}}
            print(json.dumps({"text": ""} | empty) if json_ else "")
            continue
        row, found = rows[place], classes[place]
        shown = row if isinstance(row, str) else "\t".join(row)
        if json_:
            result = found if model.is_regression else {"classes": found}
            print(json.dumps({"text": row} | result, ensure_ascii=False))
        elif model.is_regression:
            print(f"{found['number']:.4f}\t{cell(shown)}")
        else:
            n_shown = n or (len(found) if model.is_multi_label else 1)
            for label, probability in sorted(found.items(), key=lambda item: -item[1])[:n_shown]:
                print(f"{label}\t{probability:.4f}\t{cell(shown)}")
    return 0


def _row(text: str, second: str | None, model: "Model") -> str | tuple[str, str]:
    """Return one text, or two texts if the model reads pairs."""
    if second is not None or not model.takes_pairs:
        return text if second is None else (text, second)
    one, tab, other = text.partition("\t")
    if not tab:
        raise UserError("the model reads pairs of texts; give --second TEXT, or put a tab between the two texts")
    return one, other
