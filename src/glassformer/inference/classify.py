"""What a model of labels says of rows."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching import Example, pad
from glassformer.data.budget import evaluation_places, example_rows
from glassformer.models.build import Network

BATCH_TOKENS = 8192
Inputs = dict[str, Tensor]


@torch.inference_mode()
def predict(network: Network, rows: Sequence[Example], device: torch.device | str = "cpu") -> list[Tensor]:
    """The logits of each row in fp32, on the CPU: (n_labels,) of a text, (words, n_labels) where words are tagged."""
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    was_training = network.training
    network.eval()
    for places, _, inputs in in_batches(rows, device):
        for place, values in zip(places, network(**inputs).float().cpu(), strict=True):
            labels = rows[place].labels
            found[place] = values if labels is None else values[torch.from_numpy(np.flatnonzero(labels != -100))]
    network.train(was_training)
    return found


def in_batches(rows: Sequence[Example], device: torch.device | str) -> Iterator[tuple[list[int], Tensor, Inputs]]:
    """Rows of about equal length together: their places, which tokens are real (B, T), and what the network reads."""
    for places in evaluation_places(example_rows(rows, "texts"), BATCH_TOKENS):
        examples = [rows[place] for place in places]
        token_ids, mask = pad([e.token_ids for e in examples], 0)
        types = [e.token_types for e in examples if e.token_types is not None]
        inputs = {"token_ids": token_ids} | ({} if mask.all() else {"attention_mask": mask})
        inputs |= {"token_types": pad(types, 0)[0]} if types else {}
        yield places, mask.to(device), {name: x.to(device) for name, x in inputs.items()}
