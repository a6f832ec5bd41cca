"""glassformer doctor DIR"""

import json

from glassformer.cli.arguments import Dir
from glassformer.cli.inputs_outputs import Stored


def main(directory: Dir, /, *, json_: bool = False, stored: Stored) -> int:
    """Checks a model for the classical mistakes; exit code 1 when a check fails.

    Args:
        directory: The model directory.
        json_: Print one JSON object.
    """
    from glassformer.doctor import check_model

    model = stored.model(directory)
    report = check_model(model.network)
    if json_:
        print(json.dumps(report.to_dict()))
    else:
        print(report)
    return 0 if report.ok else 1
