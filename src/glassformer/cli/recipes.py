"""glassformer recipes [NAME]"""

from glassformer import recipes
from glassformer.cli.arguments import fail, read_words

HELP = """usage: glassformer recipes [NAME | REFERENCE]

Lists the recipes; with a NAME, prints that recipe; REFERENCE prints every key with a comment."""


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    words = read_words(argv, [])
    if len(words.places) > 1:
        fail("recipes takes one name, or none for the whole list")
    if words.places:
        print(recipes.text(words.places[0]), end="")
        return 0
    for name in recipes.names():
        print(f"{name:<24}{recipes.load(name).description}")
    return 0
