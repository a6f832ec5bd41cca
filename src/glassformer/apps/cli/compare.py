"""glassformer compare DIR…"""

from glassformer.apps.cli.arguments import Dirs, Search
from glassformer.apps.cli.inputs_outputs import Measured, Stored
from glassformer.apps.cli.progress import Shown, print_json
from glassformer.common.formatting import output_width
from glassformer.evaluation.compare import comparison_table


def main(
    *directories: Dirs,
    score: str | None = None,
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
        device: auto, cpu, cuda, cuda:N or mps.

    Examples:
        glassformer compare runs/one runs/two
    """
    stored = Stored(device=device)
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
    return 0
