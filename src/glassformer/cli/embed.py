"""glassformer embed DIR --input FILE --output FILE.npy"""

import io
from pathlib import Path

import numpy as np
import tyro

from glassformer import api, files
from glassformer.cli.arguments import parse
from glassformer.cli.given_texts import given_texts
from glassformer.cli.progress import err
from glassformer.errors import UserError


def main(argv: list[str]) -> int:
    return int(parse(embed, argv, "embed") or 0)


def embed(
    directory: tyro.conf.Positional[Path],
    input: str | None = None,
    output: Path | None = None,
    query: str | None = None,
    n: int = 5,
    checkpoint: int | None = None,
    device: str = "auto",
) -> int:
    """A vector for every line, the mean of the last hidden states, as a npy file; or the lines nearest to a query.

    Args:
        directory: The model directory.
        input: A file with a text a line, or - for standard input, which is read by default.
        output: The npy file, (lines, d_model) in fp32.
        query: Print the lines whose vectors point most nearly the same way as this text's: "cosine TAB line".
        n: So many of them.
        checkpoint: Use the checkpoint of this step.
        device: auto, cpu, cuda, cuda:N or mps.
    """
    if output is None and query is None:
        raise UserError("say what to make: --output FILE.npy, or --query TEXT for the nearest lines")
    if output is not None:
        files.require_file_place(output)
    texts = given_texts(None, input)
    model = api.load(directory, step=checkpoint, device=device)
    vectors = model.embed(texts, say=err)
    if output is not None:
        data = io.BytesIO()
        np.save(data, vectors)
        files.write_bytes(output, data.getvalue())
        err(f"{output}: {vectors.shape[0]:,} vectors of {vectors.shape[1]:,}")
    if query is not None:
        cosines = cosine(vectors, model.embed([query], say=err)[0])
        for place in np.argsort(-cosines, kind="stable")[:n].tolist():
            print(f"{cosines[place]:.4f}\t{texts[place]}")
    return 0


def cosine(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    """(N,) the cosine of the angle between each vector and the query; 0 for a vector of zeros.

    >>> cosine(np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([1.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    return (vectors @ query) / np.where(lengths == 0, 1, lengths)
