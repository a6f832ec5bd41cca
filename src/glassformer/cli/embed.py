"""glassformer embed DIR --input FILE --output FILE.npy"""

import io
from pathlib import Path

from glassformer import files
from glassformer.cli.arguments import Dir, File
from glassformer.cli.inputs_outputs import Loading, given_texts, require_output
from glassformer.cli.progress import err
from glassformer.errors import UserError


def main(
    directory: Dir,
    /,
    *,
    input: File | None = None,
    output: Path | None = None,
    query: str | None = None,
    n: int = 5,
    loading: Loading,
) -> int:
    """A vector for every line as a npy file; or the lines nearest to a query.

    A model with a head of vectors pools as its head says; others give the mean of the last hidden states.

    Args:
        directory: The model directory.
        input: A file with a text a line, or - for standard input, which is read by default.
        output: The npy file, (lines, d_model) in fp32.
        query: Print the lines whose vectors point most nearly the same way as this text's: "cosine TAB line".
        n: So many of them.
    """
    import numpy as np

    from glassformer.inference.embed import nearest

    if n < 1:
        raise UserError(f"--n is {n} and must be at least 1")
    if output is None and query is None:
        raise UserError("say what to make: --output FILE.npy, or --query TEXT for the nearest lines")
    if output is not None:
        require_output(output, [directory, input])
    texts = given_texts(None, input).texts
    model = loading.model(directory)
    vectors = model.embed(texts, log=err)
    if output is not None:
        data = io.BytesIO()
        np.save(data, vectors)
        files.write_bytes(output, data.getvalue())
        err(f"{output}: {vectors.shape[0]:,} vectors of {vectors.shape[1]:,}; each is {model.vectors_are}")
    if query is not None:
        for place, cosine in nearest(vectors, model.embed([query], log=err)[0], n):
            print(f"{cosine:.4f}\t{texts[place]}")
    return 0
