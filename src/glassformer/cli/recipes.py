"""glassformer recipes [NAME]"""

from typing import Annotated

from glassformer import recipes
from glassformer.cli.arguments import fail


def main(*names: Annotated[str, "[NAME|REFERENCE]"]) -> int:
    """The recipes; or one of them, as TOML; or REFERENCE, which has every key with a comment.

    Args:
        names: The one to print.
    """
    if len(names) > 1:
        fail("recipes takes one name, or none for the whole list")
    if names:
        print(recipes.text(names[0]), end="")
        return 0
    for name in recipes.names():
        print(f"{name:<24}{recipes.load(name).description}")
    return 0
