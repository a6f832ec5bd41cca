"""glassformer fill DIR "The [MASK] sat" """

import json
from dataclasses import asdict

from glassformer.cli.arguments import Dir, File, Search
from glassformer.cli.inputs_outputs import Loading, given_texts, require_effect
from glassformer.cli.translate import one_line
from glassformer.errors import UserError


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
    """Fill every [MASK] of a text: print candidates with probabilities, or the text that a denoiser writes.

    Args:
        directory: The model directory.
        text: A text with one or more [MASK]; the model's own mask token, such as <mask>, also works.
        input: A file with one text per line, or - for standard input, which is the default if no text is given. A
            blank line gives an empty line.
        n: Number of candidates per mask, 5 by default; not for a denoiser, which writes whole texts.
        json_: Print one JSON object per text.

    Examples:
        glassformer fill runs/bert "The [MASK] sat on the mat."
    """
    given = given_texts(text, input)
    loading.require([directory], "fill")
    model = loading.model(directory)
    from glassformer.inference.fill import with_masks  # imports torch

    for place, one in given.filled.items():
        with given.at(place):
            with_masks(model.tokenizer, one)
    is_denoiser = model.is_seq2seq
    if n is not None and is_denoiser:
        raise UserError(f"{directory} is a denoiser, which writes whole texts without candidates; remove --n")
    if search and not is_denoiser:
        name = next(iter(search)).replace("_", "-")
        raise UserError(f"{directory} gives candidates for each mask without beam search; remove --{name}")
    if is_denoiser:
        require_effect(model, search)
    for place, one in enumerate(given.texts):
        if place not in given.filled:
            print(json.dumps({"text": "", "candidates": []}) if json_ else "")
            continue
        with given.at(place):
            filling = model.fill(one, 5 if n is None else n, **search)
        if json_:
            print(json.dumps(asdict(filling), ensure_ascii=False))
            continue
        print(one_line(filling.text))
        for number, of_mask in enumerate(filling.candidates, 1):
            # strip the space around a token; print a token of only white space as its repr
            shown = "  ".join(f"{c.text.strip() or repr(c.text)} {100 * c.probability:.1f} %" for c in of_mask)
            print(f"  mask {number}: {shown}")
    return 0
