"""glassformer doctor DIR"""

import json

from glassformer.cli.arguments import Dir
from glassformer.cli.inputs_outputs import Stored
from glassformer.cli.progress import bar
from glassformer.formatting import show


def main(directory: Dir, /, *, json_: bool = False, stored: Stored) -> int:
    """Check a model for common implementation errors; exit with 1 if a check fails.

    Args:
        directory: The model directory.
        json_: Print one JSON object.

    Examples:
        glassformer doctor runs/mybook
    """
    model = stored.model(directory)
    from glassformer.doctor import check_model  # imports torch

    with bar("checking"):
        report = check_model(model.network)
    if json_:
        print(json.dumps(report.to_dict()))
    else:
        show(str(report))
    return 0 if report.ok else 1
