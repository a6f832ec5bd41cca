"""glassformer fill DIR "The [MASK] sat" """

import json
from pathlib import Path
from typing import Annotated, Any

import tyro

from glassformer import api
from glassformer.cli.arguments import parse
from glassformer.cli.given_texts import given_texts
from glassformer.cli.translate import one_line


def main(argv: list[str]) -> int:
    return int(parse(fill, argv, "fill") or 0)


def fill(
    directory: tyro.conf.Positional[Path],
    text: tyro.conf.Positional[str | None] = None,
    input: str | None = None,
    n: int = 5,
    beam: int | None = None,
    checkpoint: int | None = None,
    device: str = "auto",
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """What stands behind every [MASK] of a text: candidates with probabilities, or the text that a denoiser writes.

    Args:
        directory: The model directory.
        text: A text with one [MASK] or several.
        input: A file with a text a line, or - for standard input, which is read where no text is given.
        n: Candidates of each mask.
        beam: Of a denoiser, hypotheses that live at once; 1 is greedy.
        checkpoint: Use the checkpoint of this step.
        device: auto, cpu, cuda, cuda:N or mps.
        json_: Print a JSON object a text.
    """
    texts = given_texts(text, input)
    model = api.load(directory, step=checkpoint, device=device)
    settings: dict[str, Any] = {} if beam is None else {"beam": beam}
    for one in texts:
        filling = model.fill(one, n, **settings)
        if json_:
            candidates = [[[c.text, c.probability] for c in of_mask] for of_mask in filling.candidates]
            print(json.dumps({"text": filling.text, "candidates": candidates}, ensure_ascii=False))
            continue
        print(one_line(filling.text))
        for number, of_mask in enumerate(filling.candidates, 1):
            shown = "  ".join(f"{c.text} {100 * c.probability:.1f} %" for c in of_mask)
            print(f"  mask {number}: {shown}")
    return 0
