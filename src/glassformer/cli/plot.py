"""glassformer plot alignment|attention|lens|ablation|patching|positions|schedule|curves|confusion"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glassformer import recipes
from glassformer.cli.arguments import Dir, Dirs, File, Group
from glassformer.cli.inputs_outputs import Measured, Stored, TextOrPair, require_output
from glassformer.errors import UserError
from glassformer.figures import figure_paths, save_figure
from glassformer.files import as_path
from glassformer.store.model_directory import read_run
from glassformer.training.run_folder import require_run

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

    Examples:
        glassformer plot alignment runs/en-de --source "the dog runs"
    """
    _require_place(out, directory)
    model = stored.model(directory)
    from glassformer import plot

    return _write(plot.alignment(model, source, target, layer=layer, head=head), out)


def attention(
    directory: Dir,
    text: str | None = None,
    /,
    *,
    given: TextOrPair,
    stack: Literal["encoder", "decoder", "cross"] | None = None,
    layer: int | None = None,
    head: int | None = None,
    out: Path = Path("attention"),
    stored: Stored,
) -> int:
    """Plot the attention weights of every head of a layer, or of one head.

    Args:
        directory: The model directory.
        text: The input of a model with one stack.
        stack: encoder or decoder for self-attention; cross for attention from the decoder to the source.
        layer: The layer, from 0; by default the last, or with four or more layers the last but one.
        head: Plot only this head, from 0.
        out: The file or files to write.

    Examples:
        glassformer plot attention runs/mybook "It was" --layer 0
    """
    named = given.named(text)
    _require_place(out, directory)
    model = stored.model(directory)
    from glassformer import plot

    return _write(plot.attention(model, **named, stack=stack, layer=layer, head=head), out)


def lens(
    directory: Dir,
    text: str | None = None,
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
        text: The input of a model with one stack.
        no_norm: Leave out the final norm before the head.
        out: The file or files to write.

    Examples:
        glassformer plot lens runs/mybook "It was"
    """
    named = given.named(text)
    _require_place(out, directory)
    model = stored.model(directory)
    from glassformer import plot

    return _write(plot.lens(model, **named, norm=not no_norm), out)


def ablation(
    directory: Dir,
    text: str | None = None,
    /,
    *,
    given: TextOrPair,
    out: Path = Path("ablation"),
    stored: Stored,
) -> int:
    """Plot the change of the loss for each head and feed-forward that is switched off, one at a time.

    Args:
        directory: The model directory.
        text: The input of a model with one stack.
        out: The file or files to write.

    Examples:
        glassformer plot ablation runs/mybook "It was"
    """
    named = given.named(text)
    _require_place(out, directory)
    model = stored.model(directory)
    from glassformer import plot

    return _write(plot.ablation(model, **named), out)


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

    Examples:
        glassformer plot patching gpt2 --clean "Paris is in" --corrupted "Rome is in"
    """
    _require_place(out, directory)
    model = stored.model(directory)
    from glassformer import plot

    answers = {"answer": answer, "wrong": wrong, "target": target}
    return _write(plot.patching(model, clean, corrupted, stack=stack, **answers), out)


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

    Examples:
        glassformer plot positions runs/mybook
    """
    from glassformer import api

    _require_place(out, directory)
    model = api.load(directory, step=checkpoint, device="cpu")
    from glassformer import plot

    return _write(plot.positions(model, stack), out)


def schedule(run: Annotated[str, "RECIPE|FILE.toml|DIR"], /, *, out: Path = Path("schedule")) -> int:
    """Plot the learning rate at every step of a run.

    Args:
        run: A recipe's name, a TOML file, or a run folder.
        out: The file or files to write.

    Examples:
        glassformer plot schedule python-docs --out rate.png
    """
    _require_place(out, run)
    folder = as_path(run, "run")
    settings = read_run(folder) if folder.is_dir() else recipes.load(run)
    from glassformer import plot

    return _write(plot.schedule(settings), out)


def curves(*directories: Dirs, out: Path = Path("curves")) -> int:
    """Plot losses and validation scores over the steps of one or several runs.

    Args:
        directories: The run folders.
        out: The file or files to write.

    Examples:
        glassformer plot curves runs/one runs/two
    """
    if not directories:
        raise UserError("give at least one run folder")
    _require_place(out, *directories)
    for folder in directories:
        require_run(folder)
    from glassformer import plot

    return _write(plot.curves(*directories), out)


def confusion(
    directory: Dir, /, *, data__path: File | None = None, out: Path = Path("confusion"), stored: Stored
) -> int:
    """Plot the confusion matrix of classes or tags.

    Args:
        directory: The model directory.
        data__path: Labelled texts; by default the run's validation data.
        out: The file or files to write.

    Examples:
        glassformer plot confusion runs/reviews
    """
    _require_place(out, directory, data__path)
    Measured(data__path=data__path).look([directory], stored.checkpoint)
    model = stored.model(directory)
    from glassformer import plot

    return _write(plot.confusion(model, data__path), out)


def _require_place(out: Path, *inputs: str | Path | None) -> None:
    """Raise `UserError`, before a model is loaded, if a picture cannot be written or would replace an input."""
    for path in figure_paths(out):
        require_output(path, inputs)


def _write(figure: "Figure", out: Path) -> int:
    print(", ".join(map(str, save_figure(figure, out))))
    return 0


main = Group(
    "Plot models and runs. Each plot is written as PNG and SVG, such as alignment.png and alignment.svg; --out FILE "
    "sets another path, and its suffix selects one format. Needs the extra: pip install 'glassformer[plot]'",
    (alignment, attention, lens, ablation, patching, positions, schedule, curves, confusion),
)
