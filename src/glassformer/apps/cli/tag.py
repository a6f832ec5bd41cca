"""glassformer tag DIR "some words" """

from glassformer.apps.cli.arguments import Dir
from glassformer.apps.cli.inputs_outputs import Loading, TextsToJson
from glassformer.apps.cli.progress import bar, print_json


def main(directory: Dir, text: str | None = None, /, *, texts: TextsToJson, loading: Loading) -> int:
    """Tag every word: print "word TAB tag TAB probability" per word, and an empty line after each text.

    A JSON object has the words, tags and probabilities of a text.

    Examples:
        glassformer tag runs/tags "the dog runs"
    """
    loading.find([directory])
    given = texts.read(text)
    model = loading.ensemble([directory], "tag")
    with bar("tagging"):
        predicted = model.tag(list(given.each(str.split)))
    for text, tags in zip(given.texts, given.results(predicted), strict=True):
        words = text.split()
        tags = tags or []
        if texts.json_:
            print_json({"words": words, "tags": [tag for tag, _ in tags], "probabilities": [p for _, p in tags]})
            continue
        for word, (tag, probability) in zip(words, tags, strict=False):
            print(f"{word}\t{tag}\t{probability:.4f}")
        for word in words[len(tags) :]:
            print(f"{word}\t\t")
        print()
    return 0
