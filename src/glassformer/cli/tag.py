"""glassformer tag DIR… "some words" """

import json

from glassformer.cli.inputs_outputs import Loading, Texted, directories_and_text, given_texts
from glassformer.cli.progress import bar


def main(*models: Texted, input: str | None = None, json_: bool = False, loading: Loading) -> int:
    """Tag every word: print "word TAB tag TAB probability" per word, and an empty line after each text.

    Args:
        models: Model directories (several form an ensemble), then the words: the last argument if it is not a folder.
        input: A file with one text per line, or - for standard input, which is the default if no text is given. A
            blank line has no words.
        json_: Print one JSON object per text: words, tags and probabilities.

    Examples:
        glassformer tag runs/tags "the dog runs"
    """
    directories, text = directories_and_text(models)
    given = given_texts(text, input)
    loading.require(directories, "tag")
    model = loading.ensemble(directories)
    with bar("tagging") as log:
        found = model.tag([line.split() for line in given.filled.values()], log=log)
    tags_of = dict(zip(given.filled, found, strict=True))
    for line, one in enumerate(given.texts):
        words, tags = one.split(), tags_of.get(line, [])
        if json_:
            values = {"words": words, "tags": [name for name, _ in tags], "probabilities": [p for _, p in tags]}
            print(json.dumps(values, ensure_ascii=False))
            continue
        for place, word in enumerate(words):
            print(f"{word}\t{tags[place][0]}\t{tags[place][1]:.4f}" if place < len(tags) else f"{word}\t\t")
        print()
    return 0
