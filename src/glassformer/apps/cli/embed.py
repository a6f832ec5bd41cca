"""glassformer embed DIR --input FILE --output FILE.npy"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from glassformer.apps.cli.arguments import Dir
from glassformer.apps.cli.inputs_outputs import Loading, Texts, require_output
from glassformer.apps.cli.progress import bar, err
from glassformer.common import files
from glassformer.common.errors import UserError, require_integer
from glassformer.config.schema import setting
from glassformer.tasks.requirements import require_vectors


@dataclass(frozen=True)
class Wanted:
    """Output."""

    is_usual: ClassVar[bool] = True
    output: Path | None = setting(None, "The npy file to write, (lines, d_model) in fp32.")
    query: str | None = setting(
        None, 'Print the lines with the highest cosine similarity to this text: "cosine TAB line".'
    )
    n: int | None = setting(None, "Number of lines to print for the query; 5 by default.")

    def __post_init__(self) -> None:
        """Raise `UserError` if no output is requested, and for a number of lines without a query."""
        if self.n is not None and self.query is None:
            raise UserError("--n is the number of lines for a query: give --query TEXT, or remove --n")
        if self.n is not None:
            require_integer("n", self.n, 1, "the number of lines to print")
        if self.output is None and self.query is None:
            raise UserError("no output requested: give --output FILE.npy, or --query TEXT for the nearest lines")


def main(directory: Dir, text: str | None = None, /, *, wanted: Wanted, texts: Texts, loading: Loading) -> int:
    """Write one vector per line to an npy file, or print the lines nearest to a query.

    An embedding model pools with its head; other models return the mean of the last hidden states. A blank line has a
    row of NaN.

    Args:
        text: One text.

    Examples:
        glassformer embed minilm --input lines.txt --output lines.npy
        glassformer embed minilm --input lines.txt --query "a question"
    """
    # Arguments and model
    if wanted.output is not None:
        require_output(wanted.output, [directory, texts.input])
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
    if wanted.output is not None:
        rows = np.full((len(given.texts), vectors.shape[1]), np.nan, vectors.dtype)
        rows[places] = vectors
        data = io.BytesIO()
        np.save(data, rows)
        files.write_bytes(wanted.output, data.getvalue())
        n_texts, size = rows.shape
        err(f"{wanted.output}: {n_texts:,} vectors of size {size:,}; each is {model.vectors_are}")
        if n_blank := n_texts - len(places):
            err(f"blank lines of the input: {n_blank:,}; their rows are NaN")
    if wanted.query is not None:
        for place, cosine in nearest(vectors, model.embed([wanted.query])[0], wanted.n or 5):
            print(f"{cosine:.4f}\t{given.texts[places[place]]}")
    return 0
