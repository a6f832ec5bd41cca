"""Factors of embeddings, sublayers and logits."""

from dataclasses import replace

import pytest
import torch

from configs import GPT, Recorder, random_ids, random_model
from glassformer.common.errors import UserError
from glassformer.nn.masks import Mask
from tolerances import assert_close

IDS = random_ids(19, 2, 5)


@pytest.mark.parametrize("norm_order", ["pre", "post", "parallel"])
def test_factors_follow_the_configuration(norm_order: str) -> None:
    config = replace(GPT, norm_order=norm_order, embedding_scale=3.0, residual_scale=0.5, logit_scale=0.25)
    model, tap = random_model(config), Recorder()
    logits, embeddings = model(IDS, tap=tap), model.decoder.embeddings
    x = tap.seen["decoder.embeddings"]
    assert_close(x, 3 * embeddings.tokens(IDS) + embeddings.positions(torch.arange(5)))
    block = model.decoder.blocks[0]

    def attention(h: torch.Tensor) -> torch.Tensor:
        return block.self_attn(h, mask=Mask(causal=True))

    if norm_order == "post":
        y = block.self_attn_norm(x + attention(x) / 2)
        y = block.ff_norm(y + block.ff(y) / 2)
    elif norm_order == "parallel":
        y = x + attention(block.self_attn_norm(x)) / 2 + block.ff(block.ff_norm(x)) / 2
    else:
        y = x + attention(block.self_attn_norm(x)) / 2
        y = y + block.ff(block.ff_norm(y)) / 2
    assert_close(tap.seen["decoder.blocks.0.residual"], y)
    assert_close(logits, tap.seen["decoder.final"] @ model.output.proj.weight.T / 4)


@pytest.mark.parametrize("norm_order", ["sandwich", "output"])
def test_a_norm_of_outputs_removes_the_factor(norm_order: str) -> None:
    with pytest.raises(UserError, match=f"must be 1 with norm_order {norm_order}"):
        replace(GPT, norm_order=norm_order, residual_scale=0.5)
