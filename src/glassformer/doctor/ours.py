"""The examination of this package's own models, which know what they are."""

from glassformer.config import TokenHead
from glassformer.doctor.adapter import Kind
from glassformer.doctor.examine import check
from glassformer.doctor.report import Report
from glassformer.errors import UserError
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer

PROBED_LEN = 16


def check_transformer(network: Transformer, *, seed: int = 0) -> Report:
    """`check` with everything that the network's configuration says; `UserError` if its head is not over tokens."""
    config = network.config
    if not isinstance(config.head, TokenHead):
        raise UserError(f"the doctor reads logits over tokens, and this model's head is over {config.head.kind}")
    kind: Kind = "decoder"
    if config.encoder is not None:
        kind = "encoder" if config.decoder is None else "encoder-decoder"
    return check(
        network,
        vocab_size=config.vocab_size,
        source_vocab_size=config.source_vocab_size or None,
        kind=kind,
        fresh=lambda: build_model(config),
        max_len=min(config.max_len, config.source_max_len or config.max_len, PROBED_LEN),
        pad_id=config.pad_id,
        seed=seed,
    )
