"""glassformer compare DIR…"""

import json
import sys
from pathlib import Path

from glassformer.cli.arguments import Dirs, Search
from glassformer.cli.inputs_outputs import Measured, require_output
from glassformer.cli.progress import reporting
from glassformer.errors import UserError
from glassformer.evaluation.compare import comparison_table
from glassformer.figures import figure_paths, save_figure
from glassformer.formatting import output_width


def main(
    *directories: Dirs,
    score: str | None = None,
    plot: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
    json_: bool = False,
    data: Measured,
    search: Search,
) -> int:
    """Compare models in one table: parameters, training time and tokens, loss, score, and decoding speed.

    Sentences per second measure decoding only, in batches, after a warm-up with one sentence.

    Args:
        directories: Model directories.
        score: The score to show; default: bleu or wer for pairs, accuracy or rmse for labels, bits per byte for text.
        plot: Plot score against training time to this file (PNG and SVG, or the format of its suffix).
        device: auto, cpu, cuda, cuda:N or mps.
        quiet: Show no progress, only messages.
        json_: Print one JSON object per model.

    Examples:
        glassformer compare runs/one runs/two --plot comparison.png
    """
    from glassformer import api

    if not directories:
        raise UserError("give at least one model directory")
    if plot is not None:
        for path in figure_paths(plot):
            require_output(path, [*directories, *data.places.values()])
    data.look(directories)
    models = [api.load(directory, device=device) for directory in directories]
    with reporting(is_quiet=quiet) as reporter:
        rows = api.compare(models, score, reporter, **data.places, **search)
    if json_:
        for row in rows:
            print(json.dumps(row.to_dict()))
    else:
        print(comparison_table(rows, output_width()))
    if plot is not None:
        from glassformer.plot import comparison  # imports torch

        for path in save_figure(comparison(rows), plot):
            print(path, file=sys.stderr)
    return 0
