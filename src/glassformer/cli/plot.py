"""glassformer plot alignment|attention|lens|ablation|patching|positions|schedule|curves|confusion"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glassformer.cli.arguments import Dir, Dirs, File, Group
from glassformer.cli.inputs_outputs import Stored, TextOrPair
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
    """Plot the decoder's attention to each source token when it predicts each target token.

    A recurrent decoder has one attention. For a Transformer, the plot shows the mean of the heads of one layer.

    Args:
        directory: The model directory of an encoder-decoder.
        source: The source text.
        target: The target text; by default the model's translation.
        layer: The decoder layer, from 0; by default the last, or with four or more layers the last but one.
        head: Plot this head, from 0, instead of the mean of all heads.
        out: The file or files to write.
    """
    from glassformer.inspection import attention_maps, capture, plots

    _require_place(out, directory)
    model = stored.model(directory)
    trace = capture.capture(model, source=source, target=target, names=["*.weights"])
    matrix = attention_maps.alignment(trace, layer, head)
    layers = attention_maps.attention_layers(trace, "cross")
    n_heads, which = layers[0].shape[1], ""
    if len(layers) > 1 or n_heads > 1:
        n = attention_maps.default_layer(len(layers)) if layer is None else layer
        which = f", layer {n}, " + (f"mean of {n_heads} heads" if head is None else f"head {head}")
    name = f"{model.name}: alignment{which}"
    return _write(plots.heat_map(matrix, *trace.axes("cross"), name, "query", "key"), out)


def attention(
    directory: Dir,
    /,
    *,
    given: TextOrPair,
    stack: Kind | None = None,
    layer: int | None = None,
    head: int | None = None,
    out: Path = Path("attention"),
    stored: Stored,
) -> int:
    """Plot the attention weights of every head of a layer, or of one head.

    Args:
        directory: The model directory.
        stack: encoder or decoder for self-attention; cross for attention from the decoder to the source.
        layer: The layer, from 0; by default the last, or with four or more layers the last but one.
        head: Plot only this head, from 0.
        out: The file or files to write.
    """
    from glassformer.inspection import attention_maps, capture, plots

    if (given.text is None) == (given.source is None):
        raise UserError("give --text TEXT for a model with one stack, or --source TEXT for an encoder-decoder")
    if given.text is not None and given.target is not None:
        raise UserError("--target needs --source; a model with one stack takes only --text")
    _require_place(out, directory)
    model = stored.model(directory)
    trace = capture.capture(model, **given.named, names=["*.weights"])
    alone: Kind = "encoder" if getattr(model.network.config, "decoder", None) is None else "decoder"
    kind: Kind = stack or ("cross" if model.is_seq2seq else alone)
    layers = attention_maps.attention_layers(trace, kind)
    n = attention_maps.default_layer(len(layers)) if layer is None else layer
    weights = layers[attention_maps.checked("layer", n, len(layers))][0]  # (H, T, S)
    heads = list(range(len(weights))) if head is None else [attention_maps.checked("head", head, len(weights))]
    where = "cross-attention" if kind == "cross" else f"self-attention of the {kind}"
    titles, name = [f"head {head}" for head in heads], f"{model.name}: {where}, layer {n}"
    return _write(plots.heat_maps(weights[heads], *trace.axes(kind), titles, name, "query", "key"), out)


def lens(
    directory: Dir,
    /,
    *,
    given: TextOrPair,
    no_norm: bool = False,
    out: Path = Path("lens"),
    stored: Stored,
) -> int:
    """Plot the logit lens: the most probable token that the head predicts from the residual stream after each layer.

    Args:
        directory: The model directory of a Transformer that predicts tokens.
        no_norm: Leave out the final norm before the head.
        out: The file or files to write.
    """
    from glassformer.inspection import capture, value_plots
    from glassformer.inspection.lens import NAMES, lens_cells, lens_labels

    _require_place(out, directory)
    model = stored.model(directory)
    trace = capture.capture(model, **given.named, names=NAMES)
    cells = lens_cells(model.network, trace, lens_labels(model.network, trace.inputs), norm=not no_norm)
    vocabulary = model.tokenizer.tokens(range(model.tokenizer.vocab_size))
    return _write(value_plots.plot_lens(cells, trace.target, vocabulary, f"{model.name}: logit lens"), out)


def ablation(
    directory: Dir,
    /,
    *,
    given: TextOrPair,
    out: Path = Path("ablation"),
    stored: Stored,
) -> int:
    """Plot the change of the loss for each head and feed-forward that is switched off, one at a time.

    Args:
        directory: The model directory.
        out: The file or files to write.
    """
    from glassformer.inspection import capture, value_plots
    from glassformer.inspection.effects import effects
    from glassformer.inspection.measures import measure_of

    _require_place(out, directory)
    model = stored.model(directory)
    inputs = capture.encoded(model, **given.named).inputs
    found = effects(model.network, inputs, measure_of(model.network, inputs))
    if not found.changes:
        raise UserError(f"{directory} has no attention, so it has no heads to switch off")
    return _write(value_plots.plot_effects(found, f"{model.name}: ablation"), out)


def patching(
    directory: Dir,
    /,
    *,
    clean: str,
    corrupted: str,
    answer: str | None = None,
    wrong: str | None = None,
    target: str | None = None,
    stack: Literal["encoder", "decoder"] | None = None,
    out: Path = Path("patching"),
    stored: Stored,
) -> int:
    """Plot how much of a prediction each layer and position of a clean text restores in a corrupted text.

    For an encoder-decoder, both texts are sources, and the prediction is the token after a target prefix.

    Args:
        directory: The model directory of a Transformer that predicts tokens.
        clean: A text, or the source of an encoder-decoder.
        corrupted: A text with the same number of tokens and another prediction.
        answer: The token after the clean text, such as " Paris"; by default the most probable one.
        wrong: The token after the corrupted text; by default the most probable one.
        target: The target prefix of an encoder-decoder; by default the model's own output for the clean source, up to
            the first token that differs from the output for the corrupted source.
        stack: The stack whose residual stream is copied; by default the one that produces the output.
        out: The file or files to write.
    """
    from glassformer.inspection import value_plots
    from glassformer.inspection.patching import patch_residual, patching_of
    from glassformer.models.transformer import Transformer

    _require_place(out, directory)
    model = stored.model(directory)
    pair = patching_of(model, clean, corrupted, answer, wrong, target=target)
    assert isinstance(model.network, Transformer)  # `patching_of`
    found = patch_residual(model.network, pair, stack)
    name = f"{model.name}: patching" + (f" of the {stack or 'decoder'}" if model.is_seq2seq else "")
    return _write(value_plots.plot_patching(found, found.columns, name), out)


def positions(
    directory: Dir,
    /,
    *,
    stack: Literal["encoder", "decoder"] | None = None,
    out: Path = Path("positions"),
    checkpoint: int | None = None,
) -> int:
    """Plot the position encoding of a model: a table, angles, or a bias added to the attention scores.

    Args:
        directory: The model directory.
        stack: The encoder or the decoder; by default the stack that produces the output.
        out: The file or files to write.
        checkpoint: Use the checkpoint of this step.
    """
    from glassformer import api
    from glassformer.inspection import plots

    _require_place(out, directory)
    model = api.load(directory, step=checkpoint, device="cpu")
    return _write(plots.plot_positions(model.network, stack), out)


def schedule(run: Annotated[str, "RECIPE|FILE.toml|DIR"], /, *, out: Path = Path("schedule")) -> int:
    """Plot the learning rate at every step of a run.

    Args:
        run: A recipe's name, a TOML file, or a run folder.
        out: The file or files to write.
    """
    from glassformer import recipes
    from glassformer.inspection import plots
    from glassformer.store.model_directory import read_run

    _require_place(out, run)
    return _write(plots.plot_schedule(read_run(Path(run)) if Path(run).is_dir() else recipes.load(run)), out)


def curves(*directories: Dirs, out: Path = Path("curves")) -> int:
    """Plot losses and validation scores over the steps of one or several runs.

    Args:
        directories: The run folders.
        out: The file or files to write.
    """
    from glassformer.inspection import plots

    if not directories:
        raise UserError("give at least one run folder")
    _require_place(out, *directories)
    return _write(plots.plot_curves(directories), out)


def confusion(
    directory: Dir, /, *, data__path: File | None = None, out: Path = Path("confusion"), stored: Stored
) -> int:
    """Plot the confusion matrix of classes or tags.

    Args:
        directory: The model directory.
        data__path: Labelled texts; by default the run's validation data.
        out: The file or files to write.
    """
    from glassformer.inspection import plots

    _require_place(out, directory, data__path)
    model = stored.model(directory)
    if not model.classes:
        raise UserError(f"{directory} predicts no classes or tags; a confusion matrix needs a classifier or a tagger")
    report = model.scores(data__path, log=err)["report"]
    return _write(plots.plot_confusion(report.matrix, report.names), out)


def _require_place(out: Path, *inputs: str | Path | None) -> None:
    """Raise `UserError`, before a model is loaded, if a picture cannot be written or would replace an input."""
    from glassformer.cli.inputs_outputs import require_output
    from glassformer.inspection.figures import figure_paths

    for path in figure_paths(out):
        require_output(path, inputs)


def _write(figure: "Figure", out: Path) -> int:
    from glassformer.inspection.figures import save_figure

    print(", ".join(map(str, save_figure(figure, out))))
    return 0


main = Group(
    "Plot models and runs. Each plot is written as PNG and SVG, such as alignment.png and alignment.svg; --out FILE "
    "sets another path, and its suffix selects one format. Needs the extra: pip install 'glassformer[plot]'",
    (alignment, attention, lens, ablation, patching, positions, schedule, curves, confusion),
)
