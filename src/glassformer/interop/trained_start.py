"""The token that a model was trained to start a text from: the only one that an export may call `bos_token`."""

from glassformer.store.model_directory import StoredModel
from glassformer.tasks.registry import task_of
from glassformer.tasks.task import ContinuesPrompts


def trained_start(stored: StoredModel) -> int | None:
    """Return the id of the token that begins every text in training; None where no token does.

    Other programs put `bos_token` before a text (lm-evaluation-harness, llama.cpp). A token of that name that the model
    never saw there changes the result.

    The decoder of a language model records it as `decoder_start_id`. The decoder of an encoder-decoder begins with
    `decoder_start_id`, which counts where it is the BOS. Otherwise a checkpoint from elsewhere keeps the token that its
    own files name.
    """
    config = stored.config
    is_seq2seq = config.is_encoder_decoder
    is_causal_lm = isinstance(task_of(stored.run), ContinuesPrompts) and not is_seq2seq
    if is_causal_lm and config.decoder_start_id is not None:
        return config.decoder_start_id
    if stored.tokenizer.is_imported:
        return config.bos_id
    return config.bos_id if is_seq2seq and config.bos_id == config.decoder_start_id else None
