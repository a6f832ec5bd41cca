"""Direct logit attribution: the logit of a token as a sum of terms, one for each part that writes to the stream.

In a pre-norm Transformer, the last state is x = e + Σ hᵢ + Σ bₗ + Σ fₗ: embedding, heads, biases, feed-forwards. With
the final norm at the scale that it has at x, norm and head are one linear map plus a constant, so that

    logit(token) = term(e) + Σ term(hᵢ) + Σ term(bₗ) + Σ term(fₗ) + constant

holds exactly (Elhage 2021, "A Mathematical Framework for Transformer Circuits"; Wang 2022, section 3.1, for the
difference of two logits). A term is a direct effect: it leaves out what a part changes in later parts.

| term | written vector |
|---|---|
| `embedding` | the residual stream before the first block |
| `decoder.0.head.3`, `cross.0.head.3` | (context − value bias of the head) W_O |
| `decoder.0.attention_bias`, `cross.0.attention_bias` | value biases W_O + output bias + shift of an output norm |
| `decoder.0.feed_forward` | what the feed-forward adds |
| `output_bias` | the constant: shift of the final norm through the head, and the bias of the head |

The weights of a query sum to 1, so the value bias of a head reaches every position unchanged. An output norm (sandwich
block) has its scale at the attention's output.

The baseline is the same term for a random token: mean and standard deviation over the vocabulary. Softmax ignores what
is added to all logits, so only value − mean changes a probability.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import UserError
from glassformer.inspection.capture import Trace, capture_tensors
from glassformer.inspection.lens import head_stack, stream_dtype, token_transformer
from glassformer.inspection.patching import answer_id, answer_position
from glassformer.inspection.writes import (
    frozen,
    last_name,
    linear_part,
    require_additive,
    shift,
    written,
    written_names,
)
from glassformer.models.devices import evaluation_mode
from glassformer.nn.attention_functions import at_least_fp32
from glassformer.tasks.trained_model import TrainedModel

N_DEVIATIONS = 2.0
"""A term is beyond its baseline if it differs from the mean by more than this many standard deviations."""


@dataclass(frozen=True)
class Term:
    """Share of one part in a logit, or in the difference of two logits, beside its baseline.

    >>> Term(value=2.0, mean=0.1, deviation=0.5).is_beyond
    True
    """

    value: float
    mean: float
    """Mean of the same term over all tokens of the vocabulary; 0 for a difference."""
    deviation: float
    """Standard deviation over the vocabulary; of the difference of two random tokens, √2 times as large."""

    @property
    def is_beyond(self) -> bool:
        """True if the value differs from the mean by more than `N_DEVIATIONS` standard deviations."""
        return abs(self.value - self.mean) > N_DEVIATIONS * self.deviation


@dataclass(frozen=True)
class Attribution:
    """Logit of a token at a position, or the difference of the logits of two tokens, as a sum of terms."""

    token: int
    against: int | None
    """Token whose logit is subtracted; None for one logit."""
    position: int
    logit: float
    """The model's own logit, or the difference of its two logits."""
    terms: dict[str, Term]

    def grid(self) -> tuple[list[list[str | None]], list[str], list[str]]:
        """Return the names of the terms of each layer, one row per attention, and the names of rows and columns.

        The columns are the heads, the biases and the feed-forward; a part that a row does not have is None. Embedding
        and output bias belong to no layer and are left out.
        """
        names = [name.split(".", 2) for name in self.terms if "." in name]
        rows = list(dict.fromkeys((kind, layer) for kind, layer, _ in names))
        columns = sorted({part for *_, part in names}, key=_place)
        places = [[f"{kind}.{layer}.{part}" for part in columns] for kind, layer in rows]
        cells = [[name if name in self.terms else None for name in row] for row in places]
        return cells, [f"{kind} {layer}" for kind, layer in rows], [_words(part) for part in columns]

    def _repr_html_(self) -> str:
        """Return the terms of the layers as a matrix, and the other terms as a table."""
        names, rows, columns = self.grid()
        values = [[math.nan if name is None else self.terms[name].value for name in row] for row in names]
        limit = max((abs(x) for row in values for x in row if x == x), default=0.0) or 1.0
        others = {name: f"{term.value:.4g}" for name, term in self.terms.items() if "." not in name}
        title = f"terms of the logit {self.logit:.4g}"
        matrix = notebook.matrix(values, rows, columns, title, limit=limit, shown=notebook.numbers(values))
        return matrix + notebook.table(others)


def _place(part: str) -> tuple[int, int]:
    """Return the order of the parts of a layer: heads, biases, feed-forward.

    >>> sorted(["feed_forward", "head.10", "attention_bias", "head.2"], key=_place)
    ['head.2', 'head.10', 'attention_bias', 'feed_forward']
    """
    if part.startswith("head."):
        return 0, int(part.removeprefix("head."))
    if part == "attention_bias":
        return 1, 0
    return 2, 0


def _words(part: str) -> str:
    """Return a part in words.

    >>> _words("head.3"), _words("attention_bias"), _words("feed_forward")
    ('head 3', 'bias', 'feed-forward')
    """
    return {"attention_bias": "bias", "feed_forward": "feed-forward"}.get(part, part.replace(".", " "))


def logit_attribution(
    model: TrainedModel,
    trace: Trace,
    token: str | None = None,
    against: str | None = None,
    position: int | None = None,
) -> Attribution:
    """Return the terms of the logit of a token, for the inputs of a trace of a model.

    A token is one token of the vocabulary, such as " Paris"; by default the one that the model predicts. With
    `against`, the terms are those of logit(token) − logit(against). The position is by default the last one, or the
    first mask of a masked model.

    ```python
    found = logit_attribution(model, capture(model, "The king is here:"), " he", " she")
    found.terms["decoder.0.head.3"].value
    ```

    Raises `UserError` for a recurrent or post-norm model, for a head with layers of its own, for a text of several
    tokens, and for a position outside the text.
    """
    network = token_transformer(model.network, "logit attribution")
    at = answer_position(model, trace.inputs, position)
    if token is None:
        with torch.no_grad(), evaluation_mode(network):
            chosen = int(network(**trace.inputs)[0, at].argmax())
    else:
        chosen = answer_id(model, token)
    other = None if against is None else answer_id(model, against)
    return attribute(network, trace.inputs, chosen, other, at)


def attribute(
    network: nn.Module, inputs: Mapping[str, Tensor], token: int, against: int | None = None, position: int = -1
) -> Attribution:
    """Return the terms of logit(token), or of logit(token) − logit(against), at a position of the output.

    `inputs` are the arguments of the network, one row. The terms add up to the model's logit, up to rounding. Raises
    `UserError` as `logit_attribution` does.
    """
    transformer = require_additive(token_transformer(network, "logit attribution"))
    if token == against:
        raise UserError(f"both tokens are token {token}: give two different tokens")
    tensors = capture_tensors(network, inputs, [*written_names(transformer), "logits"])
    device, stack, dtype = next(transformer.parameters()).device, head_stack(transformer), stream_dtype(transformer)
    exact = torch.promote_types(dtype, torch.float32)
    at = {name: x[0, ..., position, :].to(device, exact) for name, x in tensors.items()}
    norm = getattr(transformer, stack).final_norm
    with torch.no_grad(), evaluation_mode(network):
        final, head = frozen(norm, at[last_name(transformer, stack)]), linear_part(transformer.output, dtype)
        terms = {name: _term(head(final(x)), token, against) for name, x in written(transformer, at)}
        zero = torch.zeros(transformer.config.d_model, dtype=dtype, device=device)
        constant = transformer.head(shift(norm, zero).to(zero))
        terms["output_bias"] = _term(constant, token, against)
    logits = at["logits"]
    logit = float(logits[token])
    if against is not None:
        logit -= float(logits[against])
    return Attribution(token, against, position, logit, terms)


def _term(logits: Tensor, token: int, against: int | None) -> Term:
    """Return the term of a part from what it adds to all logits, (V,).

    >>> _term(torch.tensor([1.0, 2.0, 3.0]), token=2, against=None)
    Term(value=3.0, mean=2.0, deviation=0.8164966106414795)
    """
    logits = at_least_fp32(logits)
    deviation = float(logits.std(unbiased=False))
    if against is None:
        return Term(float(logits[token]), float(logits.mean()), deviation)
    return Term(float(logits[token] - logits[against]), 0.0, math.sqrt(2) * deviation)
