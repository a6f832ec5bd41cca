"""glassformer doctor DIR"""

import json
import sys

from glassformer.cli.arguments import Dir


def main(directory: Dir, /, *, checkpoint: int | None = None, device: str = "auto", json_: bool = False) -> int:
    """Checks a model for the classical mistakes; exit code 1 when a check fails.

    Args:
        directory: The model directory.
        checkpoint: Check the checkpoint of this step.
        device: auto, cpu, cuda, cuda:N or mps.
        json_: Print one JSON object.
    """
    from glassformer import api
    from glassformer.doctor import check_model

    model = api.load(directory, step=checkpoint, device=device)
    report = check_model(model.network)
    if json_:
        json.dump(report.to_dict(), sys.stdout)
        print()
    else:
        print(report)
    return 0 if report.ok else 1
