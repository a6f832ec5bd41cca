"""Ids, activations and masks as callers give them: what is understood, and the sentence for what is not."""

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import glassformer
from configs import BERT, GPT, PAPER, random_model
from glassformer import nn as layers
from glassformer.common.arguments import ADVICE, OTHER_NAMES, names_here, renamed
from glassformer.models.build import build_model, build_transformer
from glassformer.nn import Mask, MultiHeadAttention, SingleHeadAttention, attention
from glassformer.nn.boundary import allowed_pairs, real_tokens
from tolerances import assert_close

B, H, T, S, K = 2, 4, 5, 5, 8
TRIL = torch.ones(T, S).tril()
PADDING = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


Q, KEY, V, X = drawn(B, H, T, K), drawn(B, H, S, K) + 1, drawn(B, H, S, K) - 1, drawn(B, T, 16)


@pytest.mark.parametrize("convert", [Tensor.bool, Tensor.long, Tensor.float, Tensor.double])
@pytest.mark.parametrize(
    ("mask", "full"),
    [
        (TRIL, TRIL[None, None]),
        (TRIL.expand(B, T, S), TRIL[None, None]),
        (PADDING, PADDING[:, None, None]),
        (PADDING[:, None, None], PADDING[:, None, None]),
        (PADDING[:, None] * TRIL, (PADDING[:, None] * TRIL)[:, None]),
        (TRIL.expand(B, H, T, S), TRIL[None, None]),
        (torch.ones(T, S), torch.ones(1, 1, T, S)),
    ],
    ids=["T,S", "B,T,S", "B,S", "B,1,1,S", "both", "B,H,T,S", "all"],
)
def test_a_mask_of_every_shape_and_type_gives_the_attention_of_torch(
    mask: Tensor, full: Tensor, convert: Callable[[Tensor], Tensor]
) -> None:
    expected = F.scaled_dot_product_attention(Q, KEY, V, attn_mask=full.bool())
    values, weights = attention(Q, KEY, V, convert(mask))
    assert_close(values, expected)
    assert not weights.masked_select(~full.bool().expand_as(weights)).any()
    layer = MultiHeadAttention(16, H)
    found, of_layer = layer(X, mask=convert(mask), need_weights=True)
    assert_close(layer(X, mask=convert(mask)), found)
    assert not of_layer.masked_select(~full.bool().expand_as(of_layer)).any()
    assert_close(of_layer.sum(-1), torch.ones(B, H, T))


def test_a_mask_of_other_keys_or_queries_is_understood_by_its_shape() -> None:
    assert allowed_pairs("mask", torch.ones(3, 7), (2, 1, 3, 7)).shape == (1, 1, 3, 7)
    assert allowed_pairs("mask", torch.ones(2, 7), (2, 1, 3, 7)).shape == (2, 1, 1, 7)
    assert allowed_pairs("mask", torch.ones(7), (2, 1, 3, 7)).shape == (2, 1, 1, 7)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (torch.zeros(T, S).masked_fill(TRIL == 0, -math.inf), r"added to scores \(0 and -inf\): use mask == 0"),
        (torch.zeros(T, S).masked_fill(TRIL == 0, -1e9), r"added to scores"),
        (torch.full((T, S), 2), r"got numbers from 2 to 2"),
        (TRIL.bool().logical_not(), r"only later keys are allowed; .*nn\.MultiheadAttention: use ~mask"),
        (PADDING == 0, r"a row has no key, .*nn\.MultiheadAttention: use ~mask"),
        (torch.ones(3, 4), r"expected \(T, S\) \(5, 5\), \(B, S\) \(2, 5\), .*got \(3, 4\)"),
    ],
    ids=["-inf", "-1e9", "numbers", "opposite, causal", "opposite, padding", "shape"],
)
def test_a_mask_of_another_convention_is_named(mask: Tensor, sentence: str) -> None:
    for call in (lambda: attention(Q, KEY, V, mask), lambda: MultiHeadAttention(16, H)(X, mask=mask)):
        with pytest.raises(ValueError, match=rf"^mask: .*{sentence}"):
            call()


def test_a_square_mask_of_two_meanings_is_refused() -> None:
    mask = torch.tensor([[1, 0], [0, 1]])
    with pytest.raises(ValueError, match=r"\(2, 2\) is both \(B, S\) and \(T, S\): give mask\[:, None\] for the keys"):
        attention(Q[:, :, :2], KEY[:, :, :2], V[:, :, :2], mask)
    with pytest.raises(ValueError, match=r"is both \(B, S\) and \(T, S\)"):  # rows of lengths 1 and 2, or causal
        attention(Q[:, :, :2], KEY[:, :, :2], V[:, :, :2], TRIL[:2, :2])
    values, _ = attention(Q[:, :, :2], KEY[:, :, :2], V[:, :, :2], TRIL[None, :2, :2])
    assert_close(values, F.scaled_dot_product_attention(Q[:, :, :2], KEY[:, :, :2], V[:, :, :2], is_causal=True))


def test_two_rules_hold_together() -> None:
    layer, both = MultiHeadAttention(16, H), Mask(causal=True, keys=PADDING.bool())
    assert_close(layer(X, mask=PADDING, is_causal=True), layer(X, mask=both))
    assert_close(layer(X, attn_mask=PADDING, causal=True), layer(X, mask=both))
    assert_close(attention(Q, KEY, V, PADDING, causal=True)[0], attention(Q, KEY, V, both)[0])
    for given in ({"mask": Mask(causal=True), "attn_mask": PADDING}, {"query": X}):
        with pytest.raises(TypeError, match="is given twice"):
            layer(X, **given)


def test_a_row_without_a_key_gets_zeros() -> None:
    layer, mask = MultiHeadAttention(16, H), torch.tensor([[True] * 5, [False] * 5])
    assert_close(layer(X, mask=mask), layer(X, mask=Mask(keys=mask)))
    assert torch.equal(layer(X, mask=mask)[1, 0], layer.out_proj.bias)


def test_a_mask_of_zeros_that_is_added_is_named() -> None:
    for mask in (torch.zeros(T, S), torch.zeros(B, 1, 1, S)):
        with pytest.raises(ValueError, match="all numbers are 0, so nothing may attend; leave out a mask"):
            MultiHeadAttention(16, H)(X, mask=mask)


def test_a_subclass_is_applied_once() -> None:
    class Twice(MultiHeadAttention):
        def forward(self, x: Tensor, **given: Any) -> Any:
            return super().forward(2 * x, **given)

    layer = Twice(16, H)
    assert_close(layer(X, attn_mask=PADDING), MultiHeadAttention.forward(layer, 2 * X, mask=PADDING))


def test_tensors_of_other_batches_are_refused() -> None:
    for query in (Q[0, 0], Q[:1, 0]):
        with pytest.raises(ValueError, match="query, key, value: expected the same axes of batch and heads"):
            attention(query, KEY[:, 0], V[:, 0])
    assert attention(Q[:0], KEY[:0], V[:0])[0].shape == (0, H, T, K)


def test_masks_without_values_are_taken() -> None:
    """In a compiled graph, on the meta device, and in `torch.func`."""
    layer = MultiHeadAttention(16, H)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for mask in (TRIL.bool(), PADDING.bool(), TRIL):
        assert_close(compiled(X, mask=mask), layer(X, mask=mask))
    assert layer.to("meta")(X.to("meta"), mask=TRIL.to("meta")).shape == X.shape
    rows = torch.func.vmap(lambda q, m: attention(q, q, q, m)[0])(Q[:, 0], TRIL.expand(B, T, S))
    assert_close(rows, attention(Q[:, 0], Q[:, 0], Q[:, 0], TRIL)[0])


def test_a_network_keeps_parts_with_the_names_of_other_libraries() -> None:
    gpt = random_model(GPT)
    with pytest.raises(AttributeError, match=r"a network has no attribute 'lm_head': use network\.output"):
        gpt.lm_head  # noqa: B018
    gpt.lm_head = nn.Linear(2, 3)
    gpt.register_buffer("embed", X)
    assert gpt.lm_head.out_features == 3 and gpt.embed is X


@pytest.mark.parametrize("n_dims", [2, 3, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_takes_tensors_with_and_without_batch_and_heads(n_dims: int, causal: bool) -> None:
    q, k, v = (x[(0,) * (4 - n_dims)] for x in (Q, KEY, V))
    values, weights = attention(q, k, v, causal=causal)
    assert values.shape == q.shape and weights.shape == (*q.shape[:-1], S)
    assert_close(values, F.scaled_dot_product_attention(q, k, v, is_causal=causal))
    assert_close(weights @ v, values)


def test_attention_explains_wrong_tensors() -> None:
    with pytest.raises(TypeError, match=r"query: expected a tensor \(T, K\), .*got a list"):
        attention([1.0], KEY, V)
    with pytest.raises(ValueError, match=r"query, key, value: expected \(…, T, K\), \(…, S, K\) and \(…, S, W\), got"):
        attention(Q, KEY[..., :3], V)


def test_keys_and_values_of_a_layer_come_from_one_memory() -> None:
    layer, memory = MultiHeadAttention(16, H), drawn(B, 3, 16)
    assert_close(layer(X, X, X), layer(X))
    assert_close(layer(X, memory, memory, PADDING[:, :3]), layer(X, memory, mask=PADDING[:, :3]))
    with pytest.raises(ValueError, match=r"values: expected the memory again"):
        layer(X, memory, X)


@pytest.mark.parametrize(
    ("x", "error", "sentence"),
    [
        (X[..., :9], ValueError, r"x: expected \(B, T, 16\), width 16 \(d_model\), got float32 \(2, 5, 9\)"),
        (X[0], ValueError, r"got float32 \(5, 16\); x\[None\] adds a batch"),
        (IDS, TypeError, r"got int64 \(2, 5\); ids become vectors in an embedding"),
        (X.tolist(), TypeError, r"got a list"),
    ],
    ids=["width", "row", "ids", "list"],
)
def test_a_layer_explains_a_wrong_input(x: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        MultiHeadAttention(16, H)(x)


def test_the_small_layers_explain_a_wrong_width() -> None:
    for layer in (layers.FeedForward(16), layers.LayerNorm(16), layers.SinusoidalPositions(16)):
        with pytest.raises(ValueError, match=r"16.*got float32 \(2, 5, 9\)"):
            layer(X[..., :9])
    with pytest.raises(ValueError, match=r"memory: expected \(B, T, 12\), width 12 \(d_memory\)"):
        SingleHeadAttention(16, 12)(X, X)


@pytest.mark.parametrize(
    ("ids", "error", "sentence"),
    [
        (IDS.float(), TypeError, r"got float32 \(2, 5\); ids are whole numbers: \w+\.long\(\) converts them"),
        (IDS[0], ValueError, r"got int64 \(5,\); the first axis is the batch: \w+\[None\] is one row"),
        (IDS + 1000, ValueError, r"expected ids from 0 to \d+, the vocabulary, got ids from 1001 to 1010"),
        (IDS - 5, ValueError, r"got ids from -4 to 5"),
        (IDS.tolist(), TypeError, r"got a list; torch\.as_tensor\(ids\)"),
        (IDS.numpy(), TypeError, r"got a ndarray; torch\.as_tensor\(ids\)"),
    ],
    ids=["float", "row", "large", "negative", "list", "array"],
)
@pytest.mark.parametrize("model", ["gpt", "bert", "both", "recurrent"])
def test_a_network_explains_wrong_ids(model: str, ids: Any, error: type[Exception], sentence: str) -> None:
    made: Any = build_model("bahdanau", d_embedding=8, d_encoder=8, d_decoder=8, vocab_size=20)
    if model != "recurrent":
        made = random_model({"gpt": GPT, "bert": BERT, "both": PAPER}[model])
    if model in ("gpt", "bert"):
        with pytest.raises(error, match=f"token_ids: .*{sentence}"):
            made(ids)
        return
    for given in ({"token_ids": ids, "source_ids": IDS}, {"token_ids": IDS, "source_ids": ids}):
        with pytest.raises(error, match=sentence):
            made(**given)


@pytest.mark.parametrize("convert", [Tensor.long, Tensor.float, lambda mask: mask[:, None, None].bool()])
def test_a_network_takes_masks_of_numbers(convert: Callable[[Tensor], Tensor]) -> None:
    for config in (GPT, BERT):
        model = random_model(config)
        assert torch.equal(model(IDS, convert(PADDING)), model(IDS, PADDING.bool()))
    both = random_model(PAPER)
    given = {"source_ids": IDS, "source_attention_mask": PADDING.bool()}
    expected = both(IDS, **given)
    assert torch.equal(both(IDS, **given | {"source_attention_mask": convert(PADDING)}), expected)
    memory = both.encode(IDS, convert(PADDING))
    assert torch.equal(both.project(both.decode(memory, IDS, convert(PADDING))), expected)


def test_a_causal_mask_of_a_network_is_explained() -> None:
    gpt, paper = random_model(GPT), random_model(PAPER)
    for mask in (TRIL, TRIL.bool(), TRIL[None, None]):
        assert torch.equal(gpt(IDS, mask), gpt(IDS)), "a decoder hides later tokens by itself"
        memory = paper.encode(IDS)
        assert torch.equal(paper.decode(memory, IDS, tgt_mask=mask), paper.decode(memory, IDS))
    five = IDS[:1].expand(5, 5)
    padded = TRIL.bool() & PADDING.bool()[:, None]
    assert torch.equal(gpt(IDS, padded), gpt(IDS, PADDING)) and torch.equal(
        gpt(IDS, padded[:, None]), gpt(IDS, PADDING)
    )
    lengths = torch.ones(5, 5, dtype=torch.long).tril()
    assert torch.equal(gpt(five, lengths), gpt(five, lengths.bool())), "rows of one to five real tokens"
    for model, ids in ((random_model(BERT), IDS), (random_model(BERT), five), (gpt, five)):
        with pytest.raises(ValueError, match=r"attention_mask: .*got a causal mask, which a decoder applies by itself"):
            model(ids, TRIL)
    assert torch.equal(gpt(five, TRIL.bool())[4], gpt(five)[4]), "rows of one to five real tokens"
    with pytest.raises(ValueError, match=r"attention_mask: expected \(2, 5\), True = a real token, got \(2, 4\)"):
        gpt(IDS, PADDING[:, :4])
    layer = MultiHeadAttention(16, H)
    assert torch.equal(layer(X, is_causal=True), layer(X, mask=Mask(causal=True)))


def test_the_names_of_other_libraries_give_the_same_results() -> None:
    both, gpt = random_model(PAPER), random_model(GPT)
    expected = both(IDS[:, :3], source_ids=IDS)
    assert torch.equal(both(input_ids=IDS, decoder_input_ids=IDS[:, :3]), expected)
    assert torch.equal(both(src=IDS, tgt=IDS[:, :3]), expected)
    assert torch.equal(both(IDS, IDS[:, :3]), expected), "the order of torch.nn.Transformer"
    with pytest.raises(ValueError, match=r"needs source_ids"):
        both(IDS, PADDING)
    masks = {"src_mask": PADDING, "tgt_mask": PADDING[:, :3]}
    named = {"source_attention_mask": PADDING, "attention_mask": PADDING[:, :3]}
    assert torch.equal(both(IDS, IDS[:, :3], **masks), both(IDS[:, :3], source_ids=IDS, **named))
    hf = {"input_ids": IDS, "attention_mask": PADDING, "decoder_input_ids": IDS[:, :3]}
    assert torch.equal(both(**hf), both(IDS[:, :3], source_ids=IDS, source_attention_mask=PADDING))
    assert torch.equal(gpt(input_ids=IDS, attention_mask=PADDING), gpt(IDS, PADDING))
    with pytest.raises(TypeError, match=r"forward has no argument 'labels': a network returns logits"):
        gpt(IDS, labels=IDS)
    with pytest.raises(TypeError, match=r"only token_ids, attention_mask are given by position"):
        both(IDS, IDS, PADDING, PADDING)


def test_every_name_of_an_argument_is_translated_where_it_has_an_equal() -> None:
    for here, others in OTHER_NAMES.items():
        for other in others.split():
            assert here in names_here(other)
            assert renamed("f", {other: 3}, [here]) == {here: 3}
    for name, advice in ADVICE.items():
        with pytest.raises(TypeError, match=f"f has no argument '{name}'"):
            renamed("f", {name: 3}, ["a"])
        assert advice
    with pytest.raises(TypeError, match=r"d_model is given twice, the second time as hidden_size"):
        renamed("f", {"d_model": 3, "hidden_size": 4}, ["d_model"])
    assert renamed("f", {"input_dim": 3, "emb_dim": 3, "batch_first": True}, ["d_model"]) == {"d_model": 3}


def test_every_other_name_of_a_layer_is_one() -> None:
    for name, layer in layers.OTHER_NAMES.items():
        assert getattr(layers, name) is layer and getattr(glassformer, name) is layer
        assert name not in layers.__all__
    with pytest.raises(ImportError, match=r"has no attribute 'TransformerBlock': use glassformer\.TransformerBlock"):
        exec("from glassformer.nn import TransformerBlock")
    with pytest.raises(AttributeError, match=r"'DecoderBlock': use glassformer\.TransformerBlock"):
        layers.DecoderBlock  # noqa: B018
    assert not hasattr(layers, "no_such_layer")
    exec("from glassformer import api")


def test_positions_are_tables_and_modules_that_add() -> None:
    table = layers.sinusoid(64, 16)
    assert torch.equal(table, layers.sinusoid(torch.arange(64), 16))
    sines, learned = layers.SinusoidalPositions(16), layers.LearnedPositions(64, 16)
    assert torch.equal(sines(X), X + table[:T])
    assert torch.equal(learned(X), X + learned(torch.arange(T)))
    added = layers.PositionalEncoding(16, 64, sinusoidal=False)
    assert added(X).shape == X.shape and sum(p.numel() for p in added.parameters()) == 64 * 16


def test_additive_attention_takes_one_state_in_either_order() -> None:
    made = layers.BahdanauAttention(dec_size=6, enc_size=16, hid_size=3)
    state, real = drawn(B, 6), PADDING
    context, weights = made(state, X, real)
    assert_close(context, (weights[:, None] @ X)[:, 0])
    assert not weights[1, 3:].any()
    for found, expected in zip(made(X, state, real), (context, weights), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("norm_order", ["pre", "post", "sandwich", "output", "parallel"])
def test_a_block_by_itself_hides_later_tokens(norm_order: str) -> None:
    block = glassformer.TransformerBlock(16, num_heads=4, norm_order=norm_order)
    changed = torch.cat((X[:, :3], 7 * X[:, 3:]), 1)
    assert_close(block(changed, TRIL)[:, :3], block(X, TRIL)[:, :3])
    assert_close(block(changed, mask=Mask(causal=True)), block(changed, TRIL))
    reading = glassformer.TransformerBlock(16, 4, norm_order=norm_order, cross_attention=True)
    assert_close(
        reading(X, TRIL, memory=changed, memory_mask=torch.tensor([[1, 1, 1, 0, 0]] * B)),
        reading(X, TRIL, memory=X, memory_mask=torch.tensor([[1, 1, 1, 0, 0]] * B)),
    )
    with pytest.raises(ValueError, match=r"memory: expected a tensor in a block with cross_attention"):
        reading(X)


def test_build_transformer_has_the_sizes_of_the_paper() -> None:
    sizes = {"src_seq_len": 20, "tgt_seq_len": 20, "d_model": 16, "N": 1, "h": 2, "d_ff": 32}
    model = build_transformer(src_vocab_size=90, tgt_vocab_size=80, **sizes)
    assert model(IDS, IDS[:, :3]).shape == (B, 3, 80)
    stack = model.config.decoder
    assert stack is not None and (stack.n_layers, stack.n_heads, stack.d_ff) == (1, 2, 32)
    assert (model.config.norm_order, model.config.activation) == ("post", "relu")


def test_real_tokens_of_a_list_are_left_to_the_check_of_the_ids() -> None:
    assert real_tokens("attention_mask", PADDING, IDS.tolist()) is PADDING


def test_compiled_and_exported_networks_take_the_same_inputs() -> None:
    """The checks do not break a graph: `fullgraph` fails at the first break."""
    gpt = random_model(GPT)
    compiled = torch.compile(gpt, backend="eager", fullgraph=True)
    assert_close(compiled(IDS, PADDING.bool()), gpt(IDS, PADDING))
    layer = MultiHeadAttention(16, H)
    one = torch.compile(layer, backend="eager", fullgraph=True)
    assert_close(one(X, mask=Mask(causal=True)), layer(X, mask=TRIL))


def test_the_layers_are_found_as_a_module_too() -> None:
    """`glassformer.nn.attention` is the function; its module is imported by name."""
    assert layers.attention is attention
    assert sys.modules["glassformer.nn.attention"].MultiHeadAttention is MultiHeadAttention
    assert isinstance(layers.PositionalEncoding(16), nn.Module)
