"""glassformer fill DIR "The [MASK] sat" """

import json
from dataclasses import asdict

from glassformer.cli.arguments import Dir, File, Search
from glassformer.cli.inputs_outputs import Loading, given_texts
from glassformer.cli.translate import one_line
from glassformer.errors import UserError
from glassformer.tasks.task import Translates


def main(
    directory: Dir,
    text: str | None = None,
    /,
    *,
    input: File | None = None,
    n: int | None = None,
    json_: bool = False,
    search: Search,
    loading: Loading,
) -> int:
    """What stands behind every [MASK] of a text: candidates with probabilities, or the text that a denoiser writes.

    Args:
        directory: The model directory.
        text: A text with one [MASK] or several; the model's own <mask> does as well.
        input: A file with a text a line, or - for standard input, which is read where no text is given.
        n: Candidates of each mask, 5 by default; a denoiser writes whole texts and has none.
        json_: Print a JSON object a text.
    """

    given = given_texts(text, input)
    from glassformer.inference.fill import with_masks  # which needs torch; --help does not

    model = loading.model(directory)
    for place, one in enumerate(given.texts):
        with given.at(place):
            with_masks(model.tokenizer, one)
    is_denoiser = isinstance(model.task, Translates)
    if n is not None and is_denoiser:
        raise UserError(f"{directory} writes whole texts and has no candidates: leave out --n")
    if search and not is_denoiser:
        name = next(iter(search)).replace("_", "-")
        raise UserError(f"{directory} has candidates of each mask and no beam: leave out --{name}")
    for place, one in enumerate(given.texts):
        with given.at(place):
            filling = model.fill(one, 5 if n is None else n, **search)
        if json_:
            print(json.dumps(asdict(filling), ensure_ascii=False))
            continue
        print(one_line(filling.text))
        for number, of_mask in enumerate(filling.candidates, 1):
            # a token without the space around it; one of white space alone as Python writes it
            shown = "  ".join(f"{c.text.strip() or repr(c.text)} {100 * c.probability:.1f} %" for c in of_mask)
            print(f"  mask {number}: {shown}")
    return 0
