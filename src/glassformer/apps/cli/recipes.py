"""glassformer recipes [NAME]"""

from typing import Annotated

from glassformer.common.errors import UserError
from glassformer.common.formatting import show
from glassformer.config import recipes


def main(*names: Annotated[str, "[NAME|REFERENCE]"]) -> int:
    """List the recipes, or print one as TOML; REFERENCE has every key with a comment.

    Args:
        names: The recipe to print.

    Examples:
        glassformer recipes copy-task
    """
    if len(names) > 1:
        raise UserError("recipes takes at most one name; give no name for the whole list")
    if names:
        print(recipes.text(names[0]), end="")
        return 0
    for name in recipes.names():
        show(f"{name:<24}{recipes.load(name).description}", indent=24)
    return 0
