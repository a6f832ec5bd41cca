"""glassformer doctor DIR"""

import json
import sys
from pathlib import Path
from typing import Annotated

import tyro

from glassformer import api
from glassformer.cli.arguments import parse
from glassformer.doctor import check_model


def main(argv: list[str]) -> int:
    return int(parse(doctor, argv, "doctor") or 0)


def doctor(
    directory: tyro.conf.Positional[Path],
    checkpoint: int | None = None,
    device: str = "auto",
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Checks a model for the classical mistakes; exit code 1 when a check fails.

    Args:
        directory: The model directory.
        checkpoint: Check the checkpoint of this step.
        device: auto, cpu, cuda, cuda:N or mps.
        json_: Print one JSON object.
    """
    model = api.load(directory, step=checkpoint, device=device)
    report = check_model(model.network)
    if json_:
        json.dump(report.to_dict(), sys.stdout)
        print()
    else:
        print(report)
    return 0 if report.ok else 1
