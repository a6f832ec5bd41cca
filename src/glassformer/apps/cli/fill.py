"""glassformer fill DIR "The [MASK] sat" """

from dataclasses import asdict

from glassformer.apps.cli.arguments import Dir, Search
from glassformer.apps.cli.inputs_outputs import Loading, TextsToJson, require_effect
from glassformer.apps.cli.progress import print_json
from glassformer.apps.cli.translate import one_line
from glassformer.common.errors import UserError


def main(
    directory: Dir,
    text: str | None = None,
    /,
    *,
    n: int | None = None,
    texts: TextsToJson,
    search: Search,
    loading: Loading,
) -> int:
    """Fill every [MASK] of a text: print candidates with probabilities, or the text that a denoiser writes.

    Args:
        text: A text with one or more [MASK]; the model's own mask token, such as <mask>, also works.
        n: Number of candidates per mask, 5 by default; not for a denoiser, which writes whole texts.

    Examples:
        glassformer fill runs/bert "The [MASK] sat on the mat."
    """
    # Arguments and model
    loading.find([directory])
    given = texts.read(text)
    model = loading.ensemble([directory], "fill")
    from glassformer.inference.fill import with_masks  # imports torch

    for _ in given.each(lambda text: with_masks(model.tokenizer, text)):
        pass  # a text without a mask is a mistake
    is_denoiser = model.is_seq2seq
    if n is not None and is_denoiser:
        raise UserError(f"{directory} is a denoiser, which writes whole texts without candidates; remove --n")
    if search and not is_denoiser:
        name = next(iter(search)).replace("_", "-")
        raise UserError(f"{directory} gives candidates for each mask without beam search; remove --{name}")
    if is_denoiser:
        require_effect(model, search)
    # Each text is printed when it is filled.
    if n is not None:
        search = search | {"n": n}
    for filling in given.results(given.each(lambda text: model.fill(text, **search))):
        if texts.json_:
            print_json({"text": "", "candidates": []} if filling is None else asdict(filling))
            continue
        if filling is None:
            print()
            continue
        print(one_line(filling.text))
        for number, of_mask in enumerate(filling.candidates, 1):
            # strip the space around a token; print a token of only white space as its repr
            shown = "  ".join(f"{c.text.strip() or repr(c.text)} {100 * c.probability:.1f} %" for c in of_mask)
            print(f"  mask {number}: {shown}")
    return 0
