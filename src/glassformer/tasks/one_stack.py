"""What the tasks of an encoder, or a decoder, alone share: the ids of a text, and its vector."""

import sys
from collections.abc import Sequence

from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import TokenHead, TransformerConfig, VectorHead
from glassformer.data.label_rows import encode_texts
from glassformer.inference import embed as vectors
from glassformer.inference.classify import text_rows
from glassformer.inference.embed import Vectors
from glassformer.tasks.task import Log, TrainedModel
from glassformer.tokenization.special_tokens_template import Frame


def text_ids(model: TrainedModel, text: str) -> list[int]:
    """The ids of one text with the special tokens of its training around them; not cut."""
    (row,), _ = encode_texts(model.tokenizer, [(text,)], sys.maxsize)
    return row.token_ids.tolist()


def embed(model: TrainedModel, texts: Sequence[str], log: Log, frame: Frame | None = None) -> Vectors:
    """(N, D) a vector of each text; a causal model reads texts in a `frame`, of which its vectors see nothing."""
    config = model.network.config
    assert isinstance(config, TransformerConfig)  # one stack
    cut = config.head.max_tokens if isinstance(config.head, VectorHead) else 0
    rows = text_rows(model.tokenizer, [(text,) for text in texts], cut or config.max_len, log, frame=frame)
    return vectors.embed(model.network, rows, model.device, n_before=0 if frame is None else len(frame.before))


def vectors_are(model: TrainedModel, *, is_causal: bool = False) -> str:
    """What the vectors of `embed` are, in words."""
    config = model.network.config
    assert isinstance(config, TransformerConfig)  # one stack
    return vectors.described(config.head, is_causal=is_causal)


def is_over_tokens(model: ModelConfig, *, encoder: bool) -> bool:
    """Whether it is an encoder, or else a decoder, alone, with a head over tokens."""
    if not isinstance(model, TransformerConfig) or not isinstance(model.head, TokenHead):
        return False
    return (model.encoder is not None, model.decoder is not None) == (encoder, not encoder)
