"""glassformer compare DIR…"""

import sys
from pathlib import Path

from glassformer.apps.cli.arguments import Dirs, Search
from glassformer.apps.cli.inputs_outputs import Measured, Stored, require_picture
from glassformer.apps.cli.progress import Shown, print_json
from glassformer.common.figures import save_figure
from glassformer.common.formatting import output_width
from glassformer.evaluation.compare import comparison_table


def main(
    *directories: Dirs,
    score: str | None = None,
    plot: Path | None = None,
    device: str = "auto",
    output: Shown,
    data: Measured,
    search: Search,
) -> int:
    """Compare models in one table: parameters, training time and tokens, loss, score, and decoding speed.

    Runs that differ in the seed only are one row, with means and the standard error of the score. Sentences per second
    measure decoding only, in batches, after a warm-up with one sentence.

    Args:
        score: The score to show; default: the one that selected the best step of a run, or else bleu or wer for pairs,
            accuracy or rmse for labels, bits per byte for text.
        plot: Plot score against training time to this file (PNG and SVG, or the format of its suffix).
        device: auto, cpu, cuda, cuda:N or mps.

    Examples:
        glassformer compare runs/one runs/two --plot comparison.png
    """
    stored = Stored(device=device)
    if plot is not None:
        require_picture(plot, [*directories, *data.places.values()])
    data.look(stored.require(directories, "compare"))
    models = [stored.model(directory) for directory in directories]
    from glassformer import api

    with output.reporter() as reporter:
        rows = api.compare(models, score, reporter, **data.places, **search)
    if output.json_:
        for row in rows:
            print_json(row.to_dict())
    else:
        print(comparison_table(rows, output_width()))
    if plot is not None:
        from glassformer.plot import comparison  # imports torch

        for path in save_figure(comparison(rows), plot):
            print(path, file=sys.stderr)
    return 0
