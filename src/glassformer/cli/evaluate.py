"""glassformer evaluate DIR"""

import json
import sys
from pathlib import Path
from typing import Annotated

import tyro

from glassformer import api
from glassformer.cli.arguments import parse
from glassformer.cli.progress import TerminalReporter


def main(argv: list[str]) -> int:
    return int(parse(evaluate, argv, "evaluate") or 0)


def evaluate(
    directory: tyro.conf.Positional[Path],
    data_path: Annotated[str | None, tyro.conf.arg(name="data.path")] = None,
    checkpoint: int | None = None,
    device: str = "auto",
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """The loss of a model: every target once, in consecutive windows of the context length.

    Args:
        directory: The model directory.
        data_path: A text to evaluate as a whole; by default the validation side of the run's own text.
        checkpoint: Use the checkpoint of this step.
        device: auto, cpu, cuda, cuda:N or mps.
        json_: Print one JSON object: loss, perplexity, bits_per_byte, n_tokens.
    """
    model = api.load(directory, step=checkpoint, device=device)
    with TerminalReporter() as reporter, reporter.phase("evaluating") as progress:
        report = model.evaluate(data_path, progress)
    if json_:
        json.dump(report.to_dict(), sys.stdout)
        print()
    else:
        print(f"loss           {report.loss:.4f} nats per token")
        print(f"perplexity     {report.perplexity:.3f}")
        print(f"bits per byte  {report.bits_per_byte:.4f}")
        print(f"tokens         {report.n_tokens:,}")
    return 0
