"""glassformer plot alignment|attention|positions|schedule|curves|confusion"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glassformer.cli.arguments import Dir, Dirs, File, Group
from glassformer.cli.inputs_outputs import Stored
from glassformer.cli.progress import err
from glassformer.errors import UserError
from glassformer.inspection import Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def alignment(
    directory: Dir,
    /,
    *,
    source: str,
    target: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    out: Path = Path("alignment"),
    stored: Stored,
) -> int:
    """How much the decoder attends to each source token before it writes each token of the target.

    A recurrent decoder has one attention. Of a Transformer it is the mean of the heads of one layer.

    Args:
        directory: The model directory of an encoder-decoder.
        source: The source.
        target: The target; by default what the model writes.
        layer: The layer of the decoder, from 0; by default the last, or of four and more the last but one.
        head: One head, from 0, and not the mean of all.
        out: The file or files to write.
    """
    from glassformer.inspection import attention_maps, plots

    _require_place(out, directory)
    model = stored.model(directory)
    reading = attention_maps.read_pair(model, source, target)
    matrix = attention_maps.alignment(reading.weights, layer, head)
    layers = attention_maps.attention_layers(reading.weights, "cross")
    n_heads, which = layers[0].shape[1], ""
    if len(layers) > 1 or n_heads > 1:
        n = attention_maps.default_layer(len(layers)) if layer is None else layer
        which = f", layer {n}, " + (f"mean of {n_heads} heads" if head is None else f"head {head}")
    name = f"{model.run.name}: alignment{which}"
    return _write(plots.heat_map(matrix, *reading.axes("cross"), name, "query", "key"), out)


def attention(
    directory: Dir,
    /,
    *,
    text: str | None = None,
    source: str | None = None,
    target: str | None = None,
    stack: Kind | None = None,
    layer: int | None = None,
    head: int | None = None,
    out: Path = Path("attention"),
    stored: Stored,
) -> int:
    """The attention weights of every head of a layer, or of one head.

    Args:
        directory: The model directory.
        text: What a model of one stack reads.
        source: What an encoder-decoder reads.
        target: And what its decoder reads; by default what the model writes.
        stack: Self-attention in the encoder or the decoder, or cross: from the decoder to the source.
        layer: The layer, from 0; by default the last, or of four and more the last but one.
        head: One head, from 0.
        out: The file or files to write.
    """
    from glassformer.inspection import attention_maps, plots

    if (text is None) == (source is None):
        raise UserError("give --text TEXT to a model of one stack, or --source TEXT to an encoder-decoder")
    if text is not None and target is not None:
        raise UserError("--target goes with --source; a model of one stack reads --text alone")
    _require_place(out, directory)
    model = stored.model(directory)
    if text is not None:
        reading = attention_maps.read_text(model, text)
    else:
        reading = attention_maps.read_pair(model, str(source), target)
    alone: Kind = "encoder" if getattr(model.network.config, "decoder", None) is None else "decoder"
    kind: Kind = stack or ("cross" if model.is_seq2seq else alone)
    layers = attention_maps.attention_layers(reading.weights, kind)
    n = attention_maps.default_layer(len(layers)) if layer is None else layer
    weights = layers[attention_maps.checked("layer", n, len(layers))][0]  # (H, T, S)
    heads = list(range(len(weights))) if head is None else [attention_maps.checked("head", head, len(weights))]
    where = "cross-attention" if kind == "cross" else f"self-attention of the {kind}"
    titles, name = [f"head {head}" for head in heads], f"{model.run.name}: {where}, layer {n}"
    return _write(plots.heat_maps(weights[heads], *reading.axes(kind), titles, name, "query", "key"), out)


def positions(
    directory: Dir,
    /,
    *,
    stack: Literal["encoder", "decoder"] | None = None,
    out: Path = Path("positions"),
    checkpoint: int | None = None,
) -> int:
    """How a model knows where a token stands: a table, angles, or what is added to the scores.

    Args:
        directory: The model directory.
        stack: Of the encoder or the decoder; by default the one that the output is read from.
        out: The file or files to write.
        checkpoint: Use the checkpoint of this step.
    """
    from glassformer import api
    from glassformer.inspection import plots

    _require_place(out, directory)
    model = api.load(directory, step=checkpoint, device="cpu")
    return _write(plots.plot_positions(model.network, stack), out)


def schedule(run: Annotated[str, "RECIPE|FILE.toml|DIR"], /, *, out: Path = Path("schedule")) -> int:
    """The learning rate at every step of a run.

    Args:
        run: A recipe's name, a TOML file, or the folder of a run.
        out: The file or files to write.
    """
    from glassformer import recipes
    from glassformer.inspection import plots
    from glassformer.store.model_directory import read_run

    _require_place(out, run)
    return _write(plots.plot_schedule(read_run(Path(run)) if Path(run).is_dir() else recipes.load(run)), out)


def curves(*directories: Dirs, out: Path = Path("curves")) -> int:
    """Losses and validation scores over the steps of one or several runs.

    Args:
        directories: The folders of runs.
        out: The file or files to write.
    """
    from glassformer.inspection import plots

    if not directories:
        raise UserError("name the folder of at least one run")
    _require_place(out, *directories)
    return _write(plots.plot_curves(directories), out)


def confusion(
    directory: Dir, /, *, data__path: File | None = None, out: Path = Path("confusion"), stored: Stored
) -> int:
    """Which class or tag is taken for which.

    Args:
        directory: The model directory.
        data__path: Labelled texts; by default the run's own validation data.
        out: The file or files to write.
    """
    from glassformer.inspection import plots

    _require_place(out, directory, data__path)
    model = stored.model(directory)
    if not model.classes:
        raise UserError(f"{directory} says no classes or tags, so nothing can be confused")
    report = model.scores(data__path, log=err)["report"]
    return _write(plots.plot_confusion(report.matrix, report.names), out)


def _require_place(out: Path, *inputs: str | Path | None) -> None:
    """`UserError` before a model is loaded, for a picture that could not be written, or would replace an input."""
    from glassformer.cli.inputs_outputs import require_output
    from glassformer.inspection.figures import figure_paths

    for path in figure_paths(out):
        require_output(path, inputs)


def _write(figure: "Figure", out: Path) -> int:
    from glassformer.inspection.figures import save_figure

    print(", ".join(map(str, save_figure(figure, out))))
    return 0


main = Group(
    "Pictures of models and runs. Writes alignment.png and alignment.svg, and so on, into this folder; --out FILE says "
    "otherwise, and which of the two by its suffix. Needs the extra: pip install 'glassformer[plot]'",
    (alignment, attention, positions, schedule, curves, confusion),
)
