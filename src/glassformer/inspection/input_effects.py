"""Effects of input tokens: how much a logit depends on each token of the input.

The vector of one token is replaced by the mean of the rows of the table of token embeddings; its position is kept. Let
x_t be the embedding of token t with its position (the input of the first block), and x̄_t the same with the mean row.
For a logit m, or a difference of two logits (`measures.logit_measure`),

    effect(t) = m − m with x̄_t in place of x_t
    estimate(t) = (x_t − x̄_t) · ∂m/∂x_t

A positive effect says that the token raises the logit. Effects are exact and take one forward pass per token
(occlusion, Zeiler 2014, with a mean vector in place of a grey square). The estimate is their first order. It takes one
forward and one backward pass for all tokens (gradient × input, Shrikumar 2016). Both are equal for a linear model.
`correlation` compares their orders. The effects do not add up to the logit, because tokens act together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import Progress
from glassformer.inspection.ablation import changed_outputs, replacing
from glassformer.inspection.capture import Hook, Trace, model_hooks
from glassformer.inspection.measures import Measure, logit_measure, predicts_next_token
from glassformer.inspection.patching import requiring_gradient, run_with, spearman
from glassformer.models.build import Network
from glassformer.models.devices import evaluation_mode
from glassformer.tasks.trained_model import TrainedModel


@dataclass(frozen=True)
class InputEffects:
    """Effect of each input token on a logit, or on the difference of two logits.

    Lists and tensors are by argument of the network: `source_ids` (S,) of an encoder-decoder, and `token_ids` (T,).
    """

    measure: Measure
    """The measured logit (`logit_measure`): ids and position."""
    logit: float
    """Its value for the unchanged input."""
    tokens: dict[str, list[str]]
    exact: dict[str, Tensor]
    """Logit minus the logit with the mean embedding in place of the token."""
    estimated: dict[str, Tensor]
    """(embedding − mean embedding) · gradient."""

    @property
    def correlation(self) -> float:
        """Spearman's rank correlation of the exact and the estimated effects of all tokens (`rank_correlation`)."""
        return spearman(*(torch.cat(list(of.values())) for of in (self.exact, self.estimated)))

    def _repr_html_(self) -> str:
        """Return a table with one row per token."""
        rows = [
            {"input": name.removesuffix("_ids"), "token": notebook.visible(token), "effect": x, "estimate": y}
            for name, tokens in self.tokens.items()
            for token, x, y in zip(tokens, self.exact[name].tolist(), self.estimated[name].tolist(), strict=True)
        ]
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

    `token`, `against` and `position` are those of `logit_measure`, by default the logit of the prediction. The model
    may be of any kind with logits of tokens or labels. Tokens of a source have effects too.

    ```python
    found = input_effects(model, capture(model, "The king is here:"), " he", " she")
    found.exact["token_ids"]  # (T,)
    found.correlation
    ```

    Raises `UserError` as `logit_measure` does.
    """
    network, inputs = model.network, trace.inputs
    measure, where = logit_measure(model, inputs, token, against, position), _places(network, trace)
    names = [name for name in ("source_ids", "token_ids") if name in inputs]
    # 1. The embeddings, their gradients, and the mean embedding at each position.
    with evaluation_mode(network):
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN has no gradient in evaluation
            outputs, own = run_with(network, inputs, list(where), requiring_gradient)
            gradients = torch.autograd.grad(measure(outputs)[0], list(own.values()))
        with torch.no_grad(), model_hooks(network, _with_mean_rows(network)):
            _, means = run_with(network, inputs, list(where))
    # 2. The first order, and one changed run per token. A decoder does not read later tokens.
    estimated, exact = torch.zeros(sum(inputs[name].shape[1] for name in names)), list[float]()
    n_read = len(estimated)
    if measure.positions is not None and predicts_next_token(network.config):
        n_read -= len(measure.positions) - 1 - int(measure.positions.nonzero())
    for (path, x), gradient in zip(own.items(), gradients, strict=True):
        change = ((x.detach() - means[path]) * gradient)[0].sum(dim=1).float().cpu()  # (T,)
        estimated += where[path].float() @ change
    with torch.no_grad(), evaluation_mode(network):
        logit = float(measure(outputs)[0])
        changed = changed_outputs(
            network,
            inputs,
            outputs.detach(),
            range(n_read),
            lambda some: {path: replacing(rows[list(some)], means[path]) for path, rows in where.items()},
        )
        for _, without in changed:
            exact += (logit - measure(without)).tolist()
            if progress is not None:
                progress(len(exact), n_read)
    # 3. Both by argument of the network.
    sizes, exact = [inputs[name].shape[1] for name in names], [*exact, *[0.0] * (len(estimated) - n_read)]
    of_inputs = [dict(zip(names, x.split(sizes), strict=True)) for x in (torch.tensor(exact), estimated)]
    sides = {"source_ids": trace.source, "token_ids": trace.target}
    return InputEffects(measure, logit, {name: sides[name] for name in names}, *of_inputs)


def _places(network: Network, trace: Trace) -> dict[str, Tensor]:
    """Return, for each tensor of embeddings, (N, T): in row n, True at the positions of input token n.

    Tokens of the source come first. If both stacks read one text, the decoder reads it one position later.
    """
    n = trace.inputs["token_ids"].shape[1]
    own = torch.eye(n).bool()
    if "source_ids" in trace.inputs:
        n_source = trace.inputs["source_ids"].shape[1]
        rows = torch.eye(n_source + n).bool()
        return {"encoder.embeddings": rows[:, :n_source], "decoder.embeddings": rows[:, n_source:]}
    if network.config.is_encoder_decoder:
        return {"encoder.embeddings": own, "decoder.embeddings": torch.ones(n - 1).diag(1).bool()}
    (stack,) = (name for name in ("encoder", "decoder") if getattr(network, name) is not None)
    return {f"{stack}.embeddings": own}


def _with_mean_rows(network: nn.Module) -> dict[str, Hook]:
    """Return hooks that replace each row that a table of token embeddings gives by the mean of all its rows."""

    def mean_row(name: str, x: Tensor) -> Tensor:
        table = network.get_submodule(name).weight
        assert isinstance(table, Tensor)
        return table.mean(dim=0).expand_as(x)

    return {name: mean_row for name, _ in network.named_modules() if name.endswith(".tokens")}
