"""Recurrent encoder-decoders with additive attention: glassformer, and one written by hand with torch.nn."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.config.recurrent import AttendBefore, RecurrentConfig
from glassformer.cost.flops import Shape, training_flops
from glassformer.models.build import build_model


@dataclass(frozen=True)
class Recurrent:
    """Sizes of an encoder-decoder of the recipe multi30k-de-en-bahdanau, and its batch; no dropout."""

    d_embedding: int = 256
    d_encoder: int = 256
    d_decoder: int = 512
    vocab_size: int = 8000
    batch: int = 64
    n_source: int = 24
    n_target: int = 24

    @property
    def config(self) -> RecurrentConfig:
        return RecurrentConfig(
            cell="gru",
            d_embedding=self.d_embedding,
            d_encoder=self.d_encoder,
            d_decoder=self.d_decoder,
            attention=AttendBefore(deep_output=True),
            vocab_size=self.vocab_size,
            share_embeddings=True,
        )

    @property
    def step_flops(self) -> float:
        """Matrix products of forward and backward."""
        return training_flops(self.config, Shape(self.batch, self.n_target, self.n_source))

    def inputs(self, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
        """Draw source ids, shifted target ids and labels."""
        source = torch.randint(self.vocab_size, (self.batch, self.n_source), device=device)
        target = torch.randint(self.vocab_size, (self.batch, self.n_target + 1), device=device)
        return (source, target[:, :-1]), target[:, 1:]


class PlainBahdanau(nn.Module):
    """A minimal model of Bahdanau (2015), written by hand; a test compares it with glassformer."""

    def __init__(self, shape: Recurrent) -> None:
        super().__init__()
        e, memory, d = shape.d_embedding, 2 * shape.d_encoder, shape.d_decoder
        self.table = nn.Embedding(shape.vocab_size, e)
        self.encoder = nn.GRU(e, shape.d_encoder, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(memory, d)
        self.query, self.key = nn.Linear(d, d, bias=False), nn.Linear(memory, d, bias=False)
        self.score = nn.Linear(d, 1, bias=False)
        self.cell = nn.GRUCell(e + memory, d)
        self.of_state = nn.Linear(d, 2 * e)
        self.of_token, self.of_context = nn.Linear(e, 2 * e, bias=False), nn.Linear(memory, 2 * e, bias=False)
        self.head = nn.Linear(e, shape.vocab_size, bias=False)

    def forward(self, source_ids: Tensor, token_ids: Tensor) -> Tensor:
        memory, last = self.encoder(self.table(source_ids))
        keys = self.key(memory)
        state = torch.tanh(self.bridge(torch.cat((last[0], last[1]), dim=1)))
        embedded = self.table(token_ids)
        states, contexts = [], []
        for x in embedded.unbind(dim=1):
            scores = self.score(torch.tanh(self.query(state)[:, None] + keys))
            context = (scores.softmax(dim=1) * memory).sum(dim=1)
            state = self.cell(torch.cat((x, context), dim=1), state)
            states.append(state)
            contexts.append(context)
        both = self.of_state(torch.stack(states, 1)) + self.of_token(embedded)
        both = both + self.of_context(torch.stack(contexts, 1))
        return self.head(torch.maximum(*both.chunk(2, dim=-1)))


def ours(shape: Recurrent) -> nn.Module:
    """Build glassformer's model."""
    return build_model(shape.config)


MODELS = {"torch.nn by hand": PlainBahdanau}
