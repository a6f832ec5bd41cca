"""Parameter counts by part: their sum, the matrices of Muon, and the parts of small models by hand."""

from dataclasses import replace

import pytest

from configs import CONFIGS, RECURRENT
from glassformer.config.presets import preset
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig
from glassformer.cost.parameters import ParameterCounts, parameter_counts
from glassformer.models.build import build_model
from glassformer.training.optimizers.muon import hidden_matrices

EVERY: dict[str, ModelConfig] = {**CONFIGS, **RECURRENT}


@pytest.mark.parametrize("name", EVERY)
def test_the_counts_of_every_axis(name: str) -> None:
    network, counts = build_model(EVERY[name], "meta"), parameter_counts(EVERY[name])
    assert counts.total == network.n_parameters() == sum(p.numel() for p in network.parameters())
    assert counts.matrices == sum(p.numel() for _, p in hidden_matrices(network))
    if isinstance(EVERY[name], TransformerConfig):
        blocks = [b for n, b in network.named_modules() if n.rsplit(".", 1)[0].endswith("blocks")]
        assert counts.largest_layer == max((sum(p.numel() for p in b.parameters()) for b in blocks), default=0)
    else:
        assert counts.largest_layer == counts.layers


def test_the_parts_of_gpt2_and_bert() -> None:
    """Per block 12 d² of matrices, 9 d of their biases and 4 d of two norms; BERT's head has a transform and biases."""
    d, matrices = 768, 12 * 12 * 768**2
    blocks = matrices + 12 * 13 * d
    gpt2 = ParameterCounts((50257 + 1024) * d, blocks + 2 * d, 0, blocks // 12, matrices)
    assert parameter_counts(preset("gpt2")) == gpt2
    assert parameter_counts(replace(preset("gpt2"), tie_output=False)) == replace(gpt2, head=50257 * d)
    bert = ParameterCounts((30522 + 512 + 2 + 2) * d, blocks, d * d + 3 * d + 30522, blocks // 12, matrices)
    assert parameter_counts(preset("bert-base")) == bert


def test_a_recurrent_model_has_its_tables_outside_of_the_layers() -> None:
    config = RECURRENT["luong"]
    tables = (config.encoder_vocab_size + config.vocab_size) * config.d_embedding
    counts = parameter_counts(config)
    assert not config.share_embeddings and not config.tie_output
    assert (counts.embeddings, counts.head) == (tables, config.vocab_size * config.d_readout)


def test_sizes_that_the_data_decides_count_as_the_smallest() -> None:
    config = replace(preset("bert-base"), vocab_size=0, mask_id=5, unk_id=4)
    assert parameter_counts(config) == parameter_counts(replace(config, vocab_size=6))
    for head in (PositionHead, SequenceHead):
        config = replace(preset("bert-base"), head=head())
        assert parameter_counts(config) == parameter_counts(replace(config, head=head(1)))
