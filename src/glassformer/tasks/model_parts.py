"""The parts of a trained model, from which its task makes the objects that use it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import BeamConfig, GenerationConfig, Run
from glassformer.models.build import Network
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers


@dataclass(frozen=True)
class ModelParts:
    """Networks, tokenizers and settings of a trained model."""

    network: Network
    tokenizers: Tokenizers
    generation: GenerationConfig | BeamConfig
    run: Run
    device: torch.device
    labels: tuple[str, ...] = ()
    """Names of classes or tags, by index."""
    others: tuple[Network, ...] = ()
    """Further members of an ensemble of translators; probabilities are averaged over all members."""
    folder: Path | None = None
    """The folder that the model was loaded from."""
    step: int = 0
    """Number of optimizer steps that trained the weights; 0 for an imported model."""
    data_digest: str | None = None
    """Digest of the training data; None if the folder has no training state."""
    dtype: str | None = None
    """The `dtype` passed to `load`; None keeps the weights in fp32, and `evaluate` uses the precision of the run."""

    @property
    def name(self) -> str:
        """The name of the model in messages."""
        return self.run.name if self.folder is None else str(self.folder)

    @property
    def config(self) -> ModelConfig:
        """The configuration of the network."""
        return self.network.config

    @property
    def members(self) -> list[Network]:
        """All networks of an ensemble, or the single network."""
        return [self.network, *self.others]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of texts, and of targets."""
        return self.tokenizers.target

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of sources; the same object as `tokenizer` if source and target share one."""
        return self.tokenizers.source
