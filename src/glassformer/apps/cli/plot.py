"""glassformer plot alignment|attention|positions|curves|confusion"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from glassformer.apps.cli.arguments import Dir, Dirs, File, Group
from glassformer.apps.cli.inputs_outputs import Measured, Stored, TextOrPair, require_picture
from glassformer.common.errors import UserError
from glassformer.common.figures import save_figure
from glassformer.config.run import Run
from glassformer.config.schema import checked, setting
from glassformer.tasks.requirements import (
    require_classes,
    require_inputs,
    require_positions,
)
from glassformer.training.run_folder import require_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@checked
class Picture(Stored):
    """Checkpoint, device and output."""

    out: Path | None = setting(None, "the file or files to write; by default the name of the plot")

    def require_place(self, name: str, *inputs: str | Path | None) -> None:
        """Raise `UserError` if the plot of this name cannot be written, or would replace an input."""
        require_picture(self.out or Path(name), inputs)

    def described(self, name: str, directory: Path) -> Run:
        """Return the run of the model to plot; raise `UserError` for a wrong output or a wrong directory."""
        self.require_place(name, directory)
        return self.run(directory)

    def of_model(self, name: str, directory: Path, **settings: Any) -> int:
        """Load a model, and write its plot of this name in `glassformer.plot`."""
        model = self.model(directory)
        from glassformer import plot

        return self.write(name, getattr(plot, name)(model, **settings))

    def write(self, name: str, figure: "Figure") -> int:
        """Write a figure, and print the names of its files."""
        print(", ".join(map(str, save_figure(figure, self.out or Path(name)))))
        return 0


Output = Annotated[Picture, "out"]
Text = Annotated[str, "TEXT", "The input of a model with one stack."]


@dataclass(frozen=True)
class Head:
    """Layer and head."""

    layer: int | None = setting(
        None, "The layer, from 0; by default the last, or with four or more layers the last but one."
    )
    head: int | None = setting(None, "Plot only this head, from 0.")


def alignment(directory: Dir, /, *, source: str, target: str | None = None, which: Head, picture: Picture) -> int:
    """Plot the decoder's attention to each source token when it predicts each target token.

    A recurrent decoder has one attention. For a Transformer, the plot shows the mean of the heads of one layer, or one
    head.

    Args:
        directory: The model directory of an encoder-decoder.
        source: The source text.
        target: The target text; by default the model's translation.

    Examples:
        glassformer plot alignment runs/en-de --source "the dog runs"
    """
    named = {"source": source, "target": target}
    require_inputs(picture.described("alignment", directory).model, str(directory), **named)
    return picture.of_model("alignment", directory, **named, **vars(which))


def attention(
    directory: Dir,
    text: Text | None = None,
    /,
    *,
    given: TextOrPair,
    stack: Literal["encoder", "decoder", "cross"] | None = None,
    which: Head,
    picture: Picture,
) -> int:
    """Plot the attention weights of every head of a layer, or of one head.

    Args:
        stack: encoder or decoder for self-attention; cross for attention from the decoder to the source.

    Examples:
        glassformer plot attention runs/mybook "It was" --layer 0
    """
    named = given.named(text)
    require_inputs(picture.described("attention", directory).model, str(directory), **named)
    return picture.of_model("attention", directory, **named, stack=stack, **vars(which))


def positions(directory: Dir, /, *, stack: Literal["encoder", "decoder"] | None = None, picture: Picture) -> int:
    """Plot the position encoding of a model: a table, angles, or a bias added to the attention scores.

    Args:
        stack: The encoder or the decoder; by default the stack that produces the output.

    Examples:
        glassformer plot positions runs/mybook
    """
    require_positions(picture.described("positions", directory).model, stack)
    return picture.of_model("positions", directory, stack=stack)


def curves(*directories: Dirs, picture: Output) -> int:
    """Plot losses and validation scores over the steps of one or several runs.

    Args:
        directories: The run folders.

    Examples:
        glassformer plot curves runs/one runs/two
    """
    if not directories:
        raise UserError("give at least one run folder")
    picture.require_place("curves", *directories)
    for folder in directories:
        require_run(folder)
    from glassformer import plot

    return picture.write("curves", plot.curves(*directories))


def confusion(directory: Dir, /, *, data__path: File | None = None, picture: Picture) -> int:
    """Plot the confusion matrix of classes or tags.

    Args:
        data__path: Labelled texts; by default the run's validation data.

    Examples:
        glassformer plot confusion runs/reviews
    """
    picture.require_place("confusion", data__path)
    run = picture.described("confusion", directory)
    require_classes(run, str(directory))
    Measured(data__path=data__path).look([run])
    return picture.of_model("confusion", directory, path=data__path)


main = Group(
    "Plot models and runs. Each plot is written as PNG and SVG, such as alignment.png and alignment.svg; --out FILE "
    "sets another path, and its suffix selects one format. Needs the extra: pip install 'glassformer[plot]'",
    (alignment, attention, positions, curves, confusion),
)
