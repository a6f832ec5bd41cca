"""glassformer tag DIR "some words" """

import json
from pathlib import Path
from typing import Annotated

import tyro

from glassformer import api
from glassformer.cli.arguments import parse
from glassformer.cli.given_texts import given_texts
from glassformer.cli.progress import err


def main(argv: list[str]) -> int:
    return int(parse(tag, argv, "tag") or 0)


def tag(
    directory: tyro.conf.Positional[Path],
    text: tyro.conf.Positional[str | None] = None,
    input: str | None = None,
    checkpoint: int | None = None,
    device: str = "auto",
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """The tag of every word and its probability: "word TAB tag TAB probability", and an empty line behind each text.

    Args:
        directory: The model directory.
        text: Words with spaces between them.
        input: A file with a text a line, or - for standard input, which is read where no text is given.
        checkpoint: Use the checkpoint of this step.
        device: auto, cpu, cuda, cuda:N or mps.
        json_: Print a JSON object a text: words, tags and probabilities.
    """
    sentences = [line.split() for line in given_texts(text, input).texts]
    model = api.load(directory, step=checkpoint, device=device)
    for words, tags in zip(sentences, model.tag(sentences, say=err), strict=True):
        if json_:
            values = {"words": words, "tags": [name for name, _ in tags], "probabilities": [p for _, p in tags]}
            print(json.dumps(values, ensure_ascii=False))
            continue
        for place, word in enumerate(words):
            print(f"{word}\t{tags[place][0]}\t{tags[place][1]:.4f}" if place < len(tags) else f"{word}\t\t")
        print()
    return 0
