"""glassformer embed DIR --input FILE --output FILE.npy"""

import io
from pathlib import Path

from glassformer.apps.cli.arguments import Dir
from glassformer.apps.cli.inputs_outputs import Loading, Texts, require_output
from glassformer.apps.cli.progress import bar, err
from glassformer.common import files
from glassformer.common.errors import UserError, require_integer
from glassformer.tasks.requirements import require_vectors


def main(
    directory: Dir,
    text: str | None = None,
    /,
    *,
    output: Path | None = None,
    query: str | None = None,
    n: int | None = None,
    texts: Texts,
    loading: Loading,
) -> int:
    """Write one vector per line to an npy file, or print the lines nearest to a query.

    An embedding model pools with its head; other models return the mean of the last hidden states. A blank line has a
    row of NaN.

    Args:
        text: One text.
        output: The npy file to write, (lines, d_model) in fp32.
        query: Print the lines with the highest cosine similarity to this text: "cosine TAB line".
        n: Number of lines to print for the query; 5 by default.

    Examples:
        glassformer embed minilm --input lines.txt --output lines.npy
        glassformer embed minilm --input lines.txt --query "a question"
    """
    # Arguments and model
    if n is not None and query is None:
        raise UserError("--n is the number of lines for a query: give --query TEXT, or remove --n")
    if n is not None:
        require_integer("n", n, 1, "the number of lines to print")
    if output is None and query is None:
        raise UserError("no output requested: give --output FILE.npy, or --query TEXT for the nearest lines")
    if output is not None:
        require_output(output, [directory, texts.input])
    loading.find([directory])
    given = texts.read(text)
    require_vectors(loading.run(directory).model, str(directory))
    model = loading.model(directory)
    import numpy as np

    from glassformer.inference.classify import nearest  # imports torch

    # Vectors
    places = given.places
    with bar("embedding"):
        vectors = model.embed([given.texts[place] for place in places])
    # Output
    if output is not None:
        rows = np.full((len(given.texts), vectors.shape[1]), np.nan, vectors.dtype)
        rows[places] = vectors
        data = io.BytesIO()
        np.save(data, rows)
        files.write_bytes(output, data.getvalue())
        n_texts, size = rows.shape
        err(f"{output}: {n_texts:,} vectors of size {size:,}; each is {model.vectors_are}")
        if n_blank := n_texts - len(places):
            err(f"blank lines of the input: {n_blank:,}; their rows are NaN")
    if query is not None:
        for place, cosine in nearest(vectors, model.embed([query])[0], n or 5):
            print(f"{cosine:.4f}\t{given.texts[places[place]]}")
    return 0
