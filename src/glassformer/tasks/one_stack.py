"""Shared code of all models with one stack: the ids of a text, and its vector."""

import sys
from collections.abc import Sequence

from glassformer.config.transformer import TransformerConfig, VectorHead
from glassformer.data.label_rows import encode_texts
from glassformer.errors import UserError
from glassformer.inference import embed as vectors
from glassformer.inference.classify import text_rows
from glassformer.inference.embed import Vectors
from glassformer.inference.text import causal_frame
from glassformer.tasks.registry import task_of
from glassformer.tasks.task import ContinuesPrompts, Log, TrainedModel, Translates


def embed(model: TrainedModel, texts: Sequence[str], log: Log) -> Vectors:
    """Return a vector for each text (N, D). A causal model also reads start tokens; the vectors leave them out."""
    task, config = task_of(model.run), model.network.config
    if config.is_encoder_decoder:
        raise UserError(f"{model.name} is an encoder-decoder, which has no text vectors: use a model of one stack")
    if len(model.members) > 1:
        raise UserError("an ensemble has no text vectors, because its models share no vector space: use one model")
    assert isinstance(config, TransformerConfig)  # one stack
    frame = causal_frame(model.tokenizer, config) if isinstance(task, ContinuesPrompts) else None
    cut = config.head.max_tokens if isinstance(config.head, VectorHead) else 0
    rows = text_rows(model.tokenizer, [(text,) for text in texts], cut or config.max_len, log, frame=frame)
    return vectors.embed(model.network, rows, model.device, n_before=0 if frame is None else len(frame.before))


def described(model: TrainedModel) -> str:
    """Return a description of the vectors of `embed`."""
    config = model.network.config
    assert isinstance(config, TransformerConfig)  # one stack
    return vectors.described(config.head, is_causal=isinstance(task_of(model.run), ContinuesPrompts))


def text_ids(model: TrainedModel, text: str) -> list[int]:
    """Return the ids that the model reads for a text, with special tokens as in training and without truncation."""
    task = task_of(model.run)
    if isinstance(task, Translates):
        return model.translator.source_ids(text)
    if isinstance(task, ContinuesPrompts):
        return task.writer(model).encode(text).ids
    (row,), _ = encode_texts(model.tokenizer, [(text,)], sys.maxsize)
    return row.token_ids.tolist()
