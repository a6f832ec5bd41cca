"""The methods of a `Model` that look inside: named tensors, attention, the logit lens, hooks, ablation, the inspector.

They call functions of `inspection/`, which are imported when they are called.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glassformer.common.errors import UserError, needs, one_note_per_call
from glassformer.tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    from glassformer.inspection.ablation import Part
    from glassformer.inspection.attribution import Attribution
    from glassformer.inspection.capture import Hook, Trace
    from glassformer.inspection.lens import LensCells
    from glassformer.inspection.strongest import Strongest


@one_note_per_call
class OpenModel(TrainedModel):
    """A trained model whose inner values can be read and replaced."""

    def trace(
        self,
        text: str | Sequence[int] | None = None,
        *,
        source: str | Sequence[int] | None = None,
        target: str | Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        hooks: Mapping[str, "Hook"] | None = None,
    ) -> "Trace":
        """Run the model on a text, or on a source and a target, and return its named inner tensors.

        The module `inspection/capture.py` lists the names and shapes. `names` selects some of them, with patterns such
        as `*.weights`. `hooks` replace tensors in this run (see `hooks`). In a `with` block, the tensors are released
        at the end of the block.

            with model.trace("To be, or not to be") as trace:
                trace["decoder.blocks.0.self_attn.weights"]  # (1, H, T, T)
        """
        from glassformer.inspection.capture import STANDARD, capture

        with self.hooks(hooks or {}):
            return capture(self, text, source=source, target=target, names=STANDARD if names is None else names)

    def attention(
        self,
        text: str | Sequence[int] | None = None,
        *,
        source: str | Sequence[int] | None = None,
        target: str | Sequence[int] | None = None,
    ) -> "Trace":
        """Return the attention weights of every layer, by name; a notebook shows them as heat maps.

        `glassformer.plot.attention` draws the heads of a layer, `glassformer.plot.alignment` a source and its target.
        """
        return self.trace(text, source=source, target=target, names=["*.weights"])

    def logit_lens(
        self,
        text: str | Sequence[int] | None = None,
        *,
        source: str | Sequence[int] | None = None,
        target: str | Sequence[int] | None = None,
        norm: bool = True,
    ) -> "LensCells":
        """Return the tokens that the head predicts from the residual stream after each layer (nostalgebraist 2020).

        `norm=False` leaves out the final norm. Raises `UserError` for a model without a residual stream, or without a
        head over tokens.
        """
        from glassformer.inspection.lens import NAMES, logit_lens

        return logit_lens(self, self.trace(text, source=source, target=target, names=NAMES), norm)

    def logit_attribution(
        self,
        text: str | Sequence[int] | None = None,
        token: str | None = None,
        against: str | None = None,
        *,
        source: str | Sequence[int] | None = None,
        target: str | Sequence[int] | None = None,
        position: int | None = None,
    ) -> "Attribution":
        """Return the logit of a token as a sum of terms: embedding, each head, biases, each feed-forward.

        The default position is the last one (the first mask of a masked model), and the default token is the one that
        the model predicts there. With `against`, the terms add up to the difference of two logits. Raises `UserError`
        for a recurrent or post-norm model.

            model.logit_attribution("The king is here:", " he", " she")
        """
        from glassformer.inspection.attribution import logit_attribution
        from glassformer.inspection.capture import encoded

        return logit_attribution(self, encoded(self, text, source=source, target=target), token, against, position)

    def strongest_texts(self, texts: Iterable[str | Mapping[str, str]], units: str, k: int = 10) -> "Strongest":
        """Return the k texts in which each head or neuron of a layer is most active, and a random text as baseline.

        `units` is `decoder.0.head`, `cross.0.head` or `decoder.0.neuron`; texts are read one by one.

            found = model.strongest_texts(open("stories.txt"), "decoder.1.neuron")
            found.texts(17)[0].tokens, found.baseline(17)
        """
        from glassformer.inspection.strongest import strongest

        return strongest(self, texts, units, k)

    def hooks(self, hooks: Mapping[str, "Hook"]) -> AbstractContextManager[None]:
        """Call functions with named tensors inside a `with` block, in all methods of this model.

        A hook receives the name and the tensor, and returns a replacement or None. See
        `glassformer.inspection.model_hooks`.
        """
        from glassformer.inspection.capture import model_hooks

        return model_hooks(self, hooks)

    def ablate(
        self, parts: "Part | str | Collection[Part | str] | None" = None, **guessed: Any
    ) -> AbstractContextManager[None]:
        """Switch heads, feed-forwards or layers off inside a `with` block, in all methods of this model.

            with model.ablate("decoder.0.head.3"):
                print(model.score("To be, or not to be").nats_per_token)

        Other parts are named `decoder.0.feed_forward`, `decoder.0` and `cross.1.head.0`. Raises `UserError` for a part
        that the model does not have, and for other arguments, such as a layer and a head as numbers.
        """
        from glassformer.inspection.ablation import ablate

        if parts is None or guessed:
            stack = getattr(self.config, "head_stack_name", "encoder")
            part = f"{stack}.{guessed.get('layer', 0)}.head.{guessed.get('head', 0)}"
            raise UserError(f"ablate takes the names of parts, for a `with` block: with model.ablate({part!r}): …")
        return ablate(self, parts)

    def inspect(self, text: str | None = None, **settings: Any) -> Any:
        """Open a page in the browser that shows the inner values of this model; see `glassformer.inspect`."""
        with needs("the inspector", "serve"):
            # by name: `model` must not import `apps`
            server = import_module(f"{__package__.split('.')[0]}.apps.inspector.server")
        return server.inspect(self, text, **settings)
