"""One tiny configuration of glassformer per model family of transformers."""

from dataclasses import replace

from configs import BERT, CONFIGS, GPT, LLAMA
from glassformer.config.transformer import LearnedPositions, Stack, TransformerConfig

_POSITIONS_AFTER_PADDING = LearnedPositions(offset=1)  # `model_directory` has pad_id 0
_START = 2  # [BOS] of `tiny_tokenizer`
FAMILY_CONFIGS: dict[str, TransformerConfig] = {
    "GPT-2": replace(GPT, activation="gelu_tanh"),
    "Llama": LLAMA,
    "Mistral": replace(LLAMA, decoder=replace(LLAMA.decoder or Stack(), window_pattern=(3,))),
    "Qwen2": replace(LLAMA, qkv_bias=True),
    "Qwen3": replace(LLAMA, qk_norm=True),
    "BERT": BERT,
    "RoBERTa": replace(BERT, positions=_POSITIONS_AFTER_PADDING),
    "DistilBERT": replace(BERT, n_token_types=0, norm_eps=1e-12),
    "EuroBERT": replace(LLAMA, decoder=None, encoder=LLAMA.decoder),
    "BART": replace(CONFIGS["bart"], decoder_start_id=_START),
    "Marian": replace(CONFIGS["paper"], decoder_start_id=_START),
    "T5": replace(CONFIGS["t5"], decoder_start_id=_START),
}
"""Configurations by the family's name. `model_directory` adds a vocabulary and special ids."""
