"""Results of a model for whole texts: classes, numbers, tags of words, and vectors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from glassformer.common.errors import Log, UserError, did_you_mean
from glassformer.config.run import LabelData
from glassformer.config.transformer import Head, TransformerConfig, VectorHead
from glassformer.data.batching import Example, evaluation_places, example_rows, pad, padded
from glassformer.data.rows import encode_tagged, encode_texts
from glassformer.models.build import Network
from glassformer.models.devices import InParts, evaluation_mode
from glassformer.models.heads import pool
from glassformer.models.transformer import Transformer
from glassformer.tokenization.frames import Frame
from glassformer.tokenization.tokenizer import Tokenizer

BATCH_TOKENS = 8192
Inputs = dict[str, Tensor]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Threshold:
    """A rule that chooses labels by their probabilities."""

    at: float
    label: str | None = None
    """The class whose probability is compared, in a model of two classes; `None` for a model of several labels."""

    def chosen(self, probabilities: Mapping[str, float]) -> list[str]:
        """Return the labels whose probability is at least `at`.

        Of two classes, return `label` if its probability is at least `at`, and the other class if not.

        >>> Threshold(0.3).chosen({"red": 0.9, "old": 0.3, "new": 0.2})
        ['red', 'old']
        >>> Threshold(0.3, "spam").chosen({"good": 0.8, "spam": 0.2})
        ['good']
        """
        if self.label is None:
            return [name for name, p in probabilities.items() if p >= self.at]
        is_label = probabilities[self.label] >= self.at
        return [name for name in probabilities if (name == self.label) == is_label]


@dataclass(frozen=True)
class Classifier:
    """Model that predicts a label for a text or a pair of texts: a class, several labels, or a number."""

    network: Network
    tokenizer: Tokenizer
    names: Sequence[str]
    """Names of the classes; empty for numbers."""
    data: LabelData
    """The kind of labels, and whether items are pairs. Without `path` (an imported model), both kinds are accepted."""
    device: torch.device | str = "cpu"
    name: str = "the model"

    @property
    def takes_pairs(self) -> bool:
        """True if each item is a pair of texts."""
        return self.data.second_field is not None

    @property
    def is_multi_label(self) -> bool:
        """True if a text may have several labels, or none; the probabilities then do not sum to 1."""
        return self.data.outputs == "multi_label"

    @property
    def is_regression(self) -> bool:
        """True if the labels are numbers."""
        return self.data.outputs == "regression"

    def classify(self, rows: Sequence[Sequence[str]], log: Log) -> list[dict[str, float]]:
        """Return the probability of each class for each text or pair; a predicted number has the key `number`."""
        for row in rows:
            if self.data.path is not None and (len(row) > 1) != self.takes_pairs:
                texts = "two texts" if self.takes_pairs else "one text"
                raise UserError(f"{self.name}: expected {texts} per item, got {len(row)}")
        encoded = text_rows(self.tokenizer, rows, self.network.config.max_len, log)
        logits = predict(self.network, encoded, self.device)
        if not self.names:
            return [{"number": float(x[0])} for x in logits]
        return [dict(zip(self.names, self.probabilities(x).tolist(), strict=True)) for x in logits]

    def threshold(self, at: float | None, label: str | None = None) -> Threshold | None:
        """Return the rule that chooses labels, or None if `at` is None.

        A model of two classes needs `label`; a model of several labels must not have it. Raises `UserError` otherwise,
        for a threshold outside of 0 to 1, and for a model with other outputs.
        """
        if at is None:
            if label is not None:
                raise UserError("label has no effect without threshold: give both")
            return None
        if not 0 <= at <= 1:
            raise UserError(f"threshold must be from 0 to 1, because it is compared with probabilities; got {at:g}")
        if self.is_multi_label:
            if label is not None:
                raise UserError(f"label has no effect: {self.name} predicts several labels, and each has the threshold")
            return Threshold(at)
        if len(self.names) != 2:
            what = f"one of {len(self.names)} classes" if self.names else "a number"
            raise UserError(
                f"a threshold is for models of two classes, or of several labels; {self.name} predicts {what}: leave "
                "it out"
            )
        if label is None:
            raise UserError(
                f"a threshold for two classes needs label, the class whose probability is compared: "
                f"{' or '.join(self.names)}"
            )
        if label not in self.names:
            raise UserError(
                f"{self.name} has no class {label!r:.60}: {did_you_mean(label, self.names, 'the classes are')}"
            )
        return Threshold(at, label)

    def choices(self, logits: Tensor) -> Tensor:
        """Return logits (…, choices, outcomes): all classes are one choice, or each of several labels is a choice."""
        if self.is_multi_label:  # each label is present or absent: softmax([x, 0])[0] = sigmoid(x)
            return torch.stack([logits, torch.zeros_like(logits)], dim=-1)
        return logits[..., None, :]  # one choice among all labels

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, (…, n_labels), from logits of the same shape."""
        return logits.sigmoid() if self.is_multi_label else logits.softmax(dim=-1)


@dataclass(frozen=True)
class Tagger:
    """Model that predicts a tag for each word."""

    network: Network
    tokenizer: Tokenizer
    names: Sequence[str]
    device: torch.device | str = "cpu"

    def tag(self, sentences: Sequence[Sequence[str]], log: Log) -> list[list[tuple[str, float]]]:
        """Return the most probable tag of every word, with the tag's probability; words beyond `max_len` get no tag."""
        max_len = self.network.config.max_len
        examples, n_cut = encode_tagged(self.tokenizer, sentences, max_len)
        if n_cut:
            log(f"{n_cut:,} sentences are longer than {max_len:,} tokens, and the words after that limit have no tag")
        tagged = []
        for logits in predict(self.network, examples, self.device):
            best = self.probabilities(logits).max(dim=1)
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            tagged.append([(self.names[i], p) for p, i in pairs])
        return tagged

    def choices(self, logits: Tensor) -> Tensor:
        """Return the logits of the one choice among all tags, (…, 1, n_labels)."""
        return logits[..., None, :]

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each tag, (…, n_labels), from logits of the same shape."""
        return logits.softmax(dim=-1)


def text_rows(
    tokenizer: Tokenizer, texts: Sequence[Sequence[str]], max_len: int, log: Log, *, frame: Frame | None = None
) -> list[Example]:
    """Encode texts or pairs with special tokens; `log` receives the number of texts that are cut to `max_len` tokens.

    `frame` is passed to `encode_texts`.
    """
    rows, n_cut = encode_texts(tokenizer, texts, max_len, frame=frame)
    if n_cut:
        log(f"{n_cut:,} of {len(texts):,} texts are longer than {max_len:,} tokens and are cut")
    return rows


@torch.inference_mode()
def predict(
    network: nn.Module,
    rows: Sequence[Example],
    device: torch.device | str = "cpu",
    takes: Callable[[int], bool] | None = None,
) -> list[Tensor]:
    """Return the logits of each row in fp32 on the CPU: (n_labels,) per text, or (words, n_labels) for tagging.

    If `takes` is given, batch n is computed only if `takes(n)` is True. The rows of other batches have empty logits.
    """
    logits: list[Tensor] = [torch.empty(0)] * len(rows)
    n_types = getattr(getattr(network, "config", None), "n_token_types", 0)

    def values_of(inputs: Inputs, mask: Tensor) -> Tensor:
        if n_types < 2:  # imported models may read pairs without token types
            inputs.pop("token_types", None)
        values: Tensor = network(**inputs)
        return values

    with evaluation_mode(network):
        for number, values in of_rows(values_of, rows, device, takes):
            labels = rows[number].labels
            if labels is not None:
                values = values[torch.from_numpy(np.flatnonzero(labels != -100))]
            logits[number] = values
    return logits


def of_rows(
    forward: Callable[[Inputs, Tensor], Tensor],
    rows: Sequence[Example],
    device: torch.device | str,
    takes: Callable[[int], bool] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the index and the result of each row, in fp32 on the CPU; a batch has rows of similar length.

    `forward` maps the inputs of the network and the mask of real tokens (B, T) to B results. A batch that does not fit
    in memory is computed in parts. If `takes` is given, batch n is computed only if `takes(n)` is True.
    """

    def results(numbers: Sequence[int]) -> Tensor:
        examples = [rows[number] for number in numbers]
        token_ids, mask = (x.to(device) for x in pad([e.token_ids for e in examples], 0))
        types = [e.token_types for e in examples if e.token_types is not None]
        inputs = {"token_ids": token_ids}
        if not mask.all():
            inputs["attention_mask"] = mask
        if types:
            inputs["token_types"], _ = padded(types, device)
        return forward(inputs, mask).float().cpu()

    batches = enumerate(evaluation_places(example_rows(rows, "texts"), BATCH_TOKENS))
    chosen = (batch for number, batch in batches if takes is None or takes(number))
    yield from InParts().each(chosen, results)


@dataclass(frozen=True)
class Embedder:
    """Model of one stack that computes a vector for each text.

    A causal model also reads the start tokens of `frame` before a text. The mean over tokens leaves these tokens out.
    """

    network: Network
    tokenizer: Tokenizer
    device: torch.device | str = "cpu"
    frame: Frame | None = None

    @property
    def config(self) -> TransformerConfig:
        assert isinstance(self.network.config, TransformerConfig)  # one stack
        return self.network.config

    @property
    def size(self) -> int:
        """Size of a vector."""
        return self.config.d_model

    @property
    def max_len(self) -> int:
        """Largest number of tokens of a text; a longer one is cut."""
        head = self.config.head
        cut = head.max_tokens if isinstance(head, VectorHead) else 0
        return cut or self.config.max_len

    def embed(self, texts: Sequence[str], log: Log) -> Vectors:
        """Return a vector for each text (N, D); `log` receives the number of cut texts."""
        return self.embed_rows(self.rows(texts, log))

    def rows(self, texts: Sequence[str], log: Log) -> list[Example]:
        """Return the ids that the model reads for each text; `log` receives the number of cut texts."""
        return text_rows(self.tokenizer, [(text,) for text in texts], self.max_len, log, frame=self.frame)

    def embed_rows(self, rows: Sequence[Example]) -> Vectors:
        """Return the vectors (N, D) of rows of ids."""
        n_before = 0 if self.frame is None else len(self.frame.before)
        return embed(self.network, rows, self.device, n_before=n_before)

    @property
    def description(self) -> str:
        """Description of the vectors of `embed`."""
        return described(self.config.head, is_causal=self.frame is not None)


@torch.inference_mode()
def embed(
    network: Network, rows: Sequence[Example], device: torch.device | str = "cpu", *, n_before: int = 0
) -> Vectors:
    """Return the vectors (N, D) of all rows in fp32; the vector of a row does not depend on its batch.

    For a model with a vector head, vectors are the result of `forward`. For other models, a vector is the mean of the
    last hidden states over the tokens of a row, special tokens included. The first `n_before` tokens are left out if
    the row has more tokens.
    """
    assert isinstance(network, Transformer)
    vectors = np.zeros((len(rows), network.config.d_model), dtype=np.float32)

    def vectors_of(inputs: Inputs, mask: Tensor) -> Tensor:
        if isinstance(network.config.head, VectorHead):
            return network(**inputs)
        types = inputs.get("token_types")
        hidden = network.hidden(inputs["token_ids"], inputs.get("attention_mask"), token_types=types)
        return pool(hidden, _without_first(mask, n_before), "mean")

    with evaluation_mode(network):
        for number, vector in of_rows(vectors_of, rows, device):
            vectors[number] = vector.numpy()
    return vectors


def _without_first(mask: Tensor, n: int) -> Tensor:
    """Return a mask (B, T), True = a real token, that is False at the first `n` tokens of each row with more tokens.

    >>> _without_first(torch.tensor([[True, True, True], [True, False, False]]), 1).int().tolist()
    [[0, 1, 1], [1, 0, 0]]
    """
    later = mask & (torch.arange(mask.shape[1], device=mask.device) >= n)
    return torch.where(later.any(dim=1, keepdim=True), later, mask)


def described(head: Head, *, is_causal: bool = False) -> str:
    """Describe in words the vectors of a model with this head.

    >>> described(VectorHead("mean", normalize=True, max_tokens=256))
    'the mean of the last hidden states over all tokens, divided by its length; texts are cut to 256 tokens'
    """
    if not isinstance(head, VectorHead):
        whose = "the text's own tokens" if is_causal else "all tokens"
        return f"the mean of the last hidden states over {whose}"
    text = _POOLED[head.pooling]
    if head.pooler not in ("none", "unused"):
        text += f", then a dense layer and {head.pooler}"
    if head.normalize:
        text += ", divided by its length"
    if head.max_tokens:
        text += f"; texts are cut to {head.max_tokens:,} tokens"
    return text


_POOLED = {
    "first": "the last hidden state of the first token",
    "last": "the last hidden state of the last token",
    "mean": "the mean of the last hidden states over all tokens",
    "max": "the maximum of the last hidden states over all tokens",
}


def nearest(vectors: Vectors, query: Vectors, n: int) -> list[tuple[int, float]]:
    """Return indices and cosines of the `n` vectors (N, D) with the highest cosine to `query` (D,), best first.

    >>> nearest(np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]), np.array([1.0, 0.0]), 2)
    [(1, 1.0), (0, 0.0)]
    """
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = (vectors @ query) / np.where(lengths == 0, 1, lengths)
    best = np.argsort(-cosines, kind="stable")[:n].tolist()
    return [(number, float(cosines[number])) for number in best]
