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
    text: str | None = None,
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
        text: One text.
        input: A file with one text per line, or - for standard input, which is the default if no text is given. A
            blank line gives a row of NaN.
        output: The npy file to write, (lines, d_model) in fp32.
        query: Print the lines with the highest cosine similarity to this text: "cosine TAB line".
        n: Number of lines to print for the query; 5 by default.

    Examples:
        glassformer embed minilm --input lines.txt --output lines.npy
        glassformer embed minilm --input lines.txt --query "a question"
    """
    if n is not None and query is None:
        raise UserError("--n is the number of lines for a query: give --query TEXT, or remove --n")
    if n is not None:
        require_integer("n", n, 1, "the number of lines to print")
    if output is None and query is None:
        raise UserError("no output requested: give --output FILE.npy, or --query TEXT for the nearest lines")
    if output is not None:
        require_output(output, [directory, input])
    given = given_texts(text, input)
    model = loading.model(directory)
    import numpy as np

    from glassformer.inference.embed import nearest  # imports torch

    with bar("embedding") as log:
        vectors = model.embed(list(given.filled.values()), log=log)
    places = list(given.filled)
    if output is not None:
        rows = np.full((len(given.texts), vectors.shape[1]), np.nan, vectors.dtype)
        rows[places] = vectors
        data = io.BytesIO()
        np.save(data, rows)
        files.write_bytes(output, data.getvalue())
        n_texts, size = rows.shape
        log(f"{output}: {n_texts:,} vectors of size {size:,}; each is {model.vectors_are}")
        if n_blank := n_texts - len(places):
            log(f"blank lines of the input: {n_blank:,}; their rows are NaN")
    if query is not None:
        for place, cosine in nearest(vectors, model.embed([query], log=log)[0], n or 5):
            print(f"{cosine:.4f}\t{given.texts[places[place]]}")
    return 0
