"""glassformer sweep RECIPE|FILE.toml|FILE… --vary KEY=VALUE,VALUE"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassformer.apps.cli.arguments import with_flags
from glassformer.apps.cli.inputs_outputs import require_picture
from glassformer.apps.cli.progress import Shown, err, print_json
from glassformer.apps.cli.train import Source
from glassformer.common.errors import UserError
from glassformer.common.figures import save_figure
from glassformer.common.formatting import output_width
from glassformer.config.schema import FlagText, setting
from glassformer.data import own_data
from glassformer.training.checks import run_of


@dataclass(frozen=True)
class Comparing:
    """Comparison."""

    against: str | None = setting(
        None, "The baseline: values, such as learning_rate=0.003, or the folder of an earlier sweep."
    )
    metric: str | None = setting(None, "By default bits per byte for texts, else what selects the best step.")
    until_decided: int | None = setting(None, "Add seeds to variants that are not decided, up to this number.")
    stop_early: bool | None = setting(None, "Train a variant no further that is worse in the middle of its runs.")
    plot: Path | None = setting(
        None, "Plot seeds, differences and curves to this file (PNG and SVG, or by its suffix)."
    )
    jobs: int | None = setting(None, "Runs at the same time; by default one per core, each with one thread.")


def main(
    *sources: Source,
    kind: own_data.Kind | None = None,
    vary: tuple[str, ...] = (),
    seeds: int | None = None,
    budget: str | None = None,
    out: str | None = None,
    comparing: Comparing,
    output: Shown,
    **keys: str,
) -> int:
    """Train variants of a run, each with several seeds, and report which are better than the baseline.

    The variants are all combinations of the values of --vary; without it, the base alone runs with several seeds. They
    have the same seeds, so that the differences are paired. The table has a verdict for each: better, worse or not
    known, by a paired t-test, corrected for the number of variants; without any difference, it is wrong in at most 5 %
    of all tables. Every run is a model directory in the folder, and table.csv has the table. A sweep that was stopped
    continues with the same command.

    Args:
        sources: The name of a recipe, a TOML file (which may have a table [sweep]), or own data.
        kind: The kind of own data, if it is not clear.
        vary: A key with its values, such as learning_rate=0.001,0.003; keys that vary together are joined, as in
            batch_size/grad_accumulation=8/4,32/1.
        seeds: Runs of each variant (default 3).
        budget: The length of each run, such as "500 steps", "2e6 tokens" or "60 seconds"; by default that of the base.
        out: The folder of the sweep (default sweeps/NAME).

    Examples:
        glassformer sweep mybook.txt --vary d_model=96,128 --budget "300 steps"
    """
    from glassformer.apps.sweep.plan import split_table
    from glassformer.apps.sweep.run import sweep

    # The base, and the settings of its table [sweep], which options replace
    settings: dict[str, Any] = {}
    if len(sources) == 1 and sources[0].endswith(".toml"):
        base, settings = split_table(Path(sources[0]))
    else:
        base, notes = run_of(*sources, kind=kind, changes=keys)
        own_data.note(notes)
    keys_and_values = list(map(varied, vary))
    if twice := [key for n, (key, _) in enumerate(keys_and_values) if key in dict(keys_and_values[:n])]:
        raise UserError(f"--vary {twice[0]} is given twice: give all its values once")
    given = {"vary": dict(keys_and_values) or None, "seeds": seeds, "budget": budget, **asdict(comparing)}
    if (picture := given.pop("plot")) is not None:
        require_picture(picture, sources)
    settings |= {name: value for name, value in given.items() if value is not None}
    # The runs
    report = (lambda text: None) if output.quiet else err
    table = sweep(with_flags(base, keys), out=out, report=report, **settings)
    # The table
    if output.json_:
        print_json(table.to_dict())
    else:
        print(table.text(output_width()))
    if picture is not None:
        from glassformer.plot import sweep as plotted  # imports torch

        for path in save_figure(plotted(table), picture):
            err(str(path))
    return int(bool(table.errors))


def varied(text: str) -> tuple[str, list[FlagText]]:
    """Return the key and the values of an option --vary.

    >>> varied("learning-rate=0.001,0.003")
    ('learning_rate', ['0.001', '0.003'])
    """
    key, _, values = text.partition("=")
    if not key or not all(values.split(",")):
        raise UserError(f"--vary {text}: expected a key and its values, such as learning_rate=0.001,0.003")
    return key.replace("-", "_"), [FlagText(value) for value in values.split(",")]
