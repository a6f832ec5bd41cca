"""Property checks for any PyTorch language model, in seconds.

It imports only the core. Begin with `runner.py`.

>>> import torch
>>> from torch import nn
>>> from glassformer.apps.doctor import check
>>> class Peeking(nn.Module):
...     "A language model of PyTorch modules without the causal mask."
...     def __init__(self):
...         super().__init__()
...         self.tokens = nn.Embedding(64, 32)
...         self.block = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
...         self.head = nn.Linear(32, 64)
...     def forward(self, token_ids):
...         return self.head(self.block(self.tokens(token_ids)))
>>> report = check(Peeking(), vocab_size=64, checks=["causality-by-gradient", "deterministic"])
>>> report.failed
('causality-by-gradient',)
>>> report.results[0].detail
'the gradient of the logits at 0 reaches the embeddings at [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]'

To check a model with another interface, pass an adapter: `forward=lambda module, token_ids, attention_mask: …`.
"""

from glassformer.apps.doctor.adapter import Forward, Interface, Kind, Loss
from glassformer.apps.doctor.glassformer_models import check_model
from glassformer.apps.doctor.glassformer_models import check_model as check
from glassformer.apps.doctor.runner import CHECKS, Report, Result

__all__ = ["CHECKS", "Forward", "Interface", "Kind", "Loss", "Report", "Result", "check", "check_model"]
