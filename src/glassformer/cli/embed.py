"""glassformer embed DIR --input FILE --output FILE.npy"""

import io
from pathlib import Path

from glassformer import files
from glassformer.cli.arguments import Dir, File
from glassformer.cli.inputs_outputs import Loading, given_texts, require_output
from glassformer.cli.progress import bar
from glassformer.errors import UserError, require_integer


def main(
    directory: Dir,
    /,
    *,
    input: File | None = None,
    output: Path | None = None,
    query: str | None = None,
    n: int | None = None,
    loading: Loading,
) -> int:
    """Write one vector per line to an npy file, or print the lines nearest to a query.

    An embedding model pools with its head; other models return the mean of the last hidden states.

    Args:
        directory: The model directory.
        input: A file with one text per line, or - for standard input, which is the default.
        output: The npy file to write, (lines, d_model) in fp32.
        query: Print the lines with the highest cosine similarity to this text: "cosine TAB line".
        n: Number of lines to print for the query; 5 by default.
    """
    import numpy as np

    from glassformer.inference.embed import nearest

    if n is not None and query is None:
        raise UserError("--n is the number of lines for a query: give --query TEXT, or remove --n")
    if n is not None:
        require_integer("n", n, 1, "the number of lines to print")
    if output is None and query is None:
        raise UserError("no output requested: give --output FILE.npy, or --query TEXT for the nearest lines")
    if output is not None:
        require_output(output, [directory, input])
    texts = given_texts(None, input).texts
    model = loading.model(directory)
    with bar("embedding") as log:
        vectors = model.embed(texts, log=log)
    if output is not None:
        data = io.BytesIO()
        np.save(data, vectors)
        files.write_bytes(output, data.getvalue())
        n_texts, size = vectors.shape
        log(f"{output}: {n_texts:,} vectors of size {size:,}; each is {model.vectors_are}")
    if query is not None:
        for place, cosine in nearest(vectors, model.embed([query], log=log)[0], n or 5):
            print(f"{cosine:.4f}\t{texts[place]}")
    return 0
