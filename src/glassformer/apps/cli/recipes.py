"""glassformer recipes [NAME]"""

import json
from typing import Annotated

from glassformer.common.formatting import show
from glassformer.config import recipes
from glassformer.config.written import json_schema


def main(name: Annotated[str, "[NAME|REFERENCE|SCHEMA]"] | None = None, /) -> int:
    """List the recipes, or print one as TOML.

    REFERENCE has every key with a comment. SCHEMA is the JSON Schema of a recipe, for editors of TOML: name its file in
    the first line of a recipe, as #:schema ./recipe.json

    Args:
        name: The recipe to print.

    Examples:
        glassformer recipes copy-task
        glassformer recipes SCHEMA > recipe.json
    """
    if name == "SCHEMA":
        print(json.dumps(json_schema(), indent=1, ensure_ascii=False))
    elif name is not None:
        print(recipes.text(name), end="")
    else:
        for one in recipes.names():
            show(f"{one:<24}{recipes.load(one).description}", indent=24)
    return 0
