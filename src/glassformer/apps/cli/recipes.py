"""glassformer recipes [NAME]"""

import json
from typing import Annotated

from glassformer.common.errors import UserError
from glassformer.common.formatting import show
from glassformer.config import recipes
from glassformer.config.written import json_schema


def main(*names: Annotated[str, "[NAME|REFERENCE|SCHEMA]"]) -> int:
    """List the recipes, or print one as TOML.

    REFERENCE has every key with a comment. SCHEMA is the JSON Schema of a recipe, for editors of TOML: name its file in
    the first line of a recipe, as #:schema ./recipe.json

    Args:
        names: The recipe to print.

    Examples:
        glassformer recipes copy-task
        glassformer recipes SCHEMA > recipe.json
    """
    if len(names) > 1:
        raise UserError("recipes takes at most one name; give no name for the whole list")
    if names == ("SCHEMA",):
        print(json.dumps(json_schema(), indent=1, ensure_ascii=False))
        return 0
    if names:
        print(recipes.text(names[0]), end="")
        return 0
    for name in recipes.names():
        show(f"{name:<24}{recipes.load(name).description}", indent=24)
    return 0
