"""glassformer fill DIR "The [MASK] sat" """

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro

from glassformer.cli.arguments import parse
from glassformer.cli.given_texts import given_texts
from glassformer.cli.members import BY_DEFAULT, Loaded
from glassformer.cli.translate import one_line
from glassformer.errors import UserError
from glassformer.inference.fill import with_masks
from glassformer.tasks.task import Translates


def main(argv: list[str]) -> int:
    return int(parse(fill, argv, "fill") or 0)


def fill(
    directory: tyro.conf.Positional[Path],
    text: tyro.conf.Positional[str | None] = None,
    input: str | None = None,
    n: int | None = None,
    beam: int | None = None,
    loading: Loaded = BY_DEFAULT,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """What stands behind every [MASK] of a text: candidates with probabilities, or the text that a denoiser writes.

    Args:
        directory: The model directory.
        text: A text with one [MASK] or several; the model's own <mask> does as well.
        input: A file with a text a line, or - for standard input, which is read where no text is given.
        n: Candidates of each mask, 5 by default; a denoiser writes whole texts and has none.
        beam: Of a denoiser, hypotheses that live at once; 1 is greedy.
        json_: Print a JSON object a text.
    """
    given = given_texts(text, input)
    model = loading.model(directory)
    for place, one in enumerate(given.texts):
        with given.at(place):
            with_masks(model.tokenizer, one)
    is_denoiser = isinstance(model.task, Translates)
    if n is not None and is_denoiser:
        raise UserError(f"{directory} writes whole texts and has no candidates: leave out --n")
    if beam is not None and not is_denoiser:
        raise UserError(f"{directory} has candidates of each mask and no beam: leave out --beam")
    settings: dict[str, Any] = {} if beam is None else {"beam": beam}
    for place, one in enumerate(given.texts):
        with given.at(place):
            filling = model.fill(one, 5 if n is None else n, **settings)
        if json_:
            print(json.dumps(asdict(filling), ensure_ascii=False))
            continue
        print(one_line(filling.text))
        for number, of_mask in enumerate(filling.candidates, 1):
            shown = "  ".join(f"{_readable(c.text)} {100 * c.probability:.1f} %" for c in of_mask)
            print(f"  mask {number}: {shown}")
    return 0


def _readable(token: str) -> str:
    """A token without the space around it; one of white space alone as Python writes it."""
    return token.strip() or repr(token)
