"""Effects of input tokens: how much a logit depends on each token of the input.

The mean of the rows of the table of token embeddings replaces the row of one token, at the same position. Let x be the
embedding of the token with its position, x̄ the same with the mean row, and m a logit or the difference of two logits:

    effect = m − m with x̄ in place of x
    estimate = (x − x̄) · ∂m/∂x

A token with a positive effect raises the logit. Effects are exact and take one forward pass per token (occlusion,
Zeiler 2014). Estimates are their first order and take one backward pass in all (gradient × input, Shrikumar 2016).
Both are equal for a linear model. The effects do not add up to the logit, because tokens act together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import Progress
from glassformer.inspection.ablation import changed_outputs, replacing
from glassformer.inspection.capture import Hook, Trace, model_hooks
from glassformer.inspection.measures import Measure, logit_measure, predicts_next_token
from glassformer.inspection.patching import rank_correlation, requiring_gradient, run_with
from glassformer.models.build import Network
from glassformer.models.devices import evaluation_mode
from glassformer.tasks.trained_model import TrainedModel


@dataclass(frozen=True)
class InputEffects:
    """Effect of each of N input tokens on a logit; the tokens of a source come before those of its target."""

    measure: Measure
    """The logit: ids and position (`logit_measure`)."""
    logit: float
    tokens: list[str]
    exact: Tensor
    """(N,)"""
    estimated: Tensor
    """(N,)"""

    @property
    def correlation(self) -> float:
        """Rank correlation of the exact and the estimated effects; see `rank_correlation`."""
        return rank_correlation(self.exact, self.estimated)

    def _repr_html_(self) -> str:
        """Return a table with one row per token."""
        columns = self.tokens, self.exact.tolist(), self.estimated.tolist()
        rows = [dict(zip(("token", "effect", "estimate"), row, strict=True)) for row in zip(*columns, strict=True)]
        return notebook.frame(rows, f"logit {self.logit:.4g}; rank correlation {self.correlation:.2f}")


def input_effects(
    model: TrainedModel,
    trace: Trace,
    token: str | None = None,
    against: str | None = None,
    position: int | None = None,
    *,
    progress: Progress | None = None,
) -> InputEffects:
    """Return the effect of each input token of a trace on a logit, exactly and to first order.

    The logit, and the errors, are those of `logit_measure`: by default the logit of the prediction. The model may be of
    any kind with logits of tokens or labels. `progress` is called with the numbers of replaced tokens and of all.

    ```python
    found = input_effects(model, capture(model, "The king is here:"), " he", " she")
    dict(zip(found.tokens, found.exact.tolist())), found.correlation
    ```
    """
    network, inputs = model.network, trace.inputs
    measure, places = logit_measure(model, inputs, token, against, position), _places(network, inputs)
    with evaluation_mode(network):
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN has no gradient in evaluation
            outputs, own = run_with(network, inputs, list(places), requiring_gradient)
            gradients = torch.autograd.grad(measure(outputs)[0], list(own.values()))
        with torch.no_grad(), model_hooks(network, _with_mean_rows(network)):
            _, means = run_with(network, inputs, list(places))
    n_tokens = n_read = sum(x.shape[1] for x in inputs.values())
    if measure.positions is not None and predicts_next_token(network.config):  # a decoder reads no later tokens
        n_read -= len(measure.positions) - 1 - int(measure.positions.nonzero())
    exact, estimated, logit = torch.zeros(n_tokens), torch.zeros(n_tokens), float(measure(outputs.detach())[0])
    for (path, where), gradient in zip(places.items(), gradients, strict=True):
        at_positions = ((own[path].detach() - means[path]) * gradient)[0].sum(dim=1)  # (T,)
        estimated += where.float() @ at_positions.float().cpu()

    def replaced(some: Sequence[int]) -> dict[str, Hook]:
        return {path: replacing(where[list(some)], means[path]) for path, where in places.items()}

    with torch.no_grad(), evaluation_mode(network):
        for some, changed in changed_outputs(network, inputs, outputs, range(n_read), replaced):
            exact[list(some)] = (logit - measure(changed)).float().cpu()
            if progress is not None:
                progress(some[-1] + 1, n_read)
    tokens = trace.source + trace.target if "source_ids" in inputs else trace.target
    return InputEffects(measure, logit, tokens, exact, estimated)


def _places(network: Network, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return, for each tensor of embeddings, (N, T): in row n, True at the positions of input token n."""
    sizes = [x.shape[1] for x in (inputs.get("source_ids", inputs["token_ids"][:, :0]), inputs["token_ids"])]
    of_source, own = torch.eye(sum(sizes)).bool().split(sizes, dim=1)
    if sizes[0]:
        return {"encoder.embeddings": of_source, "decoder.embeddings": own}
    if network.config.is_encoder_decoder:  # both stacks read the text, the decoder one position later
        return {"encoder.embeddings": own, "decoder.embeddings": torch.ones(len(own) - 1).diag(1).bool()}
    return {f"{name}.embeddings": own for name in ("encoder", "decoder") if getattr(network, name) is not None}


def _with_mean_rows(network: nn.Module) -> dict[str, Hook]:
    """Return hooks that replace each row that a table of token embeddings gives by the mean of all its rows."""

    def mean_row(name: str, x: Tensor) -> Tensor:
        return network.get_parameter(f"{name}.weight").mean(dim=0).expand_as(x)

    return {name: mean_row for name, _ in network.named_modules() if name.endswith(".tokens")}
