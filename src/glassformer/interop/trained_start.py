"""The token that a model was trained to start a text from: the only one that an export may call `bos_token`."""

from glassformer.config import TransformerConfig
from glassformer.store.model_directory import StoredModel


def trained_start(stored: StoredModel) -> int | None:
    """The id of the token that begins every text in training; None where no token does.

    Other programs put `bos_token` before a text (lm-evaluation-harness, llama.cpp). A token of that name that the model
    never saw there changes the result.

    A checkpoint from elsewhere keeps the token that its own files name. The decoder of an encoder-decoder begins with
    `decoder_start_id`. No run here has trained a model of one stack to start from a token.
    """
    config = stored.config
    if stored.tokenizer.roles is not None:
        return config.bos_id
    is_seq2seq = not isinstance(config, TransformerConfig) or (
        config.encoder is not None and config.decoder is not None
    )
    return config.bos_id if is_seq2seq and config.bos_id == config.decoder_start_id else None
