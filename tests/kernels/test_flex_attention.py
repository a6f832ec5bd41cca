"""FlexAttention gives the context and gradients of the reference for packed rows, and is used only where it pays.

A CPU runs the formulas of FlexAttention, not its kernel, which `tests/gpu` compares. PyTorch refuses gradients on a CPU
by a check, which is replaced here: the backward pass of the formulas exists.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from configs import GPT, LLAMA, Recorder, random_ids, random_model
from glassformer.config.train import AdamWConfig
from glassformer.config.transformer import AlibiPositions, TransformerConfig
from glassformer.data.batching import Batch
from glassformer.nn.attention import attention_fused, attention_reference
from glassformer.nn.kernels import flex_attention
from glassformer.nn.kernels.flex_attention import prefers_flex
from glassformer.nn.masks import Mask
from glassformer.training.optimizers.build import build_optimizer
from runs import step_of
from tolerances import assert_close, near

# Warnings of torch while it traces its own code.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

B, H, K = 2, 4, 16
CPU = torch.device("cpu")
COMPILED = torch.compile


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Compile without code for the machine, and with gradients on a CPU; return the code of the graphs."""
    from torch._dynamo.backends.debugging import aot_eager

    found: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        found.append("".join(getattr(part, "code", "") for part in graph.modules()))
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    flex_attention._compiled_once.cache_clear()
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr(torch, "compile", functools.partial(COMPILED, backend=backend, fullgraph=True))
    yield found
    flex_attention._compiled_once.cache_clear()
    torch._dynamo.reset()


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run FlexAttention without compiling it, forward only; return the names of its functions that were called."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    found: list[str] = []

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        found.append(function.__name__)
        return function

    monkeypatch.setattr(flex_attention, "_compiled", plain)
    return found


def use_on_cpu(patch: pytest.MonkeyPatch) -> None:
    """Prefer FlexAttention on the CPU too, in fp32 and for short rows and narrow heads."""
    patch.setattr(flex_attention, "DEVICES", ("cpu",))
    patch.setattr(flex_attention, "DTYPES", (torch.float32, torch.bfloat16))
    patch.setattr(flex_attention, "MIN_TOKENS", 2)
    patch.setattr(flex_attention, "WIDTHS", range(1, 64))


def packed(n_rows: int, n_tokens: int, n_documents: int, seed: int = 0) -> Tensor:
    """Draw the documents of packed rows, (B, T), with padding at the end of the last row."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(n_documents, (n_rows, n_tokens), generator=generator).sort().values
    ids[-1, n_tokens - n_tokens // 5 :] = -1
    return ids


def tensors(n_tokens: int, n_kv_heads: int, d_value: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(B, n, n_tokens, width) for n, width in ((H, K), (n_kv_heads, K), (n_kv_heads, d_value))]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


KEYS = torch.rand(B, 150, generator=torch.Generator().manual_seed(2)) > 0.3
A_ROW = torch.ones(B, 150, dtype=torch.bool) & torch.tensor([[True], [False]])


@pytest.mark.parametrize(
    ("mask", "n_kv_heads", "d_value", "scale"),
    [(Mask(causal=True, window=40, keys=KEYS), 1, 32, 0.3), (Mask(keys=A_ROW), 2, K, None)],
    ids=["all rules", "row of padding"],
)
def test_context_and_gradients_equal_the_reference(
    mask: Mask, n_kv_heads: int, d_value: int, scale: float | None, graphs: list[str]
) -> None:
    """Rows of two blocks; some queries have no key."""
    documents = packed(B, 150, 4)
    mask, results = replace(mask, documents=(documents, documents)), []
    for path, where in ((attention_fused, mask.as_blocks()), (attention_reference, mask)):
        leaves = [x.clone().requires_grad_() for x in tensors(150, n_kv_heads, d_value)]
        out: Any = path(*leaves, where, scale)
        context = out if isinstance(out, Tensor) else out[0]
        results.append([context, *torch.autograd.grad(context.sin().sum(), leaves)])
    for found, expected in zip(*results, strict=True):
        assert found.isfinite().all()
        assert_close(found, expected)
    assert len(graphs) == 2, "one for the blocks, one for the context"


@settings(max_examples=25)
@given(st.data())
def test_any_packed_rows_equal_the_reference(data: st.DataObject) -> None:
    """One to three blocks; documents need not be contiguous."""
    draw = data.draw
    n_tokens, seed = draw(st.sampled_from([2, 5, 127, 128, 129, 256, 300])), draw(st.integers(0, 99))
    documents = packed(B, n_tokens, draw(st.integers(1, 9)), seed)
    if draw(st.booleans()):
        documents = documents.flip(0)[:, torch.randperm(n_tokens, generator=torch.Generator().manual_seed(seed))]
    mask = Mask(
        causal=draw(st.booleans()),
        window=draw(st.sampled_from([0, 1, 30, 128])),
        keys=draw(st.sampled_from([None, documents >= 0, documents % 2 == 0])),
        documents=(documents, documents),
    )
    made = tensors(n_tokens, 2, draw(st.sampled_from([K, 24])))
    with pytest.MonkeyPatch.context() as patch:
        formulas.__wrapped__(patch)  # type: ignore[attr-defined]
        found = attention_fused(*made, mask.as_blocks())
    assert_close(found, attention_reference(*made, mask)[0])


def test_blocks_without_an_allowed_pair_are_skipped(formulas: list[str]) -> None:
    """Four documents of two blocks: the causal rule needs 3 of the 64 blocks for each, one of them whole."""
    documents = (torch.arange(1024) // 256).repeat(B, 1)
    blocks = Mask(causal=True, documents=(documents, documents)).as_blocks().block_mask
    assert blocks is not None and blocks.full_kv_num_blocks is not None
    assert int(blocks.kv_num_blocks[0].sum()) == 4 * 2 and int(blocks.full_kv_num_blocks[0].sum()) == 4
    assert blocks.sparsity() == pytest.approx(100 * (1 - 12 / 64))


def test_queries_in_fp32_are_read_like_values(formulas: list[str]) -> None:
    """Norms of queries and keys give fp32 under autocast."""
    documents = packed(B, 20, 3)
    mask = Mask(documents=(documents, documents)).as_blocks()
    query, key, value = (x.bfloat16() for x in tensors(20, 2, K))
    found = attention_fused(query.float(), key.float(), value, mask)
    assert found.dtype == torch.bfloat16
    assert_close(found, attention_fused(query, key, value, mask))


# Where it is used


DOCUMENTS = packed(B, 600, 5)
PACKED = Mask(causal=True, documents=(DOCUMENTS, DOCUMENTS))
X = torch.zeros(B, 600, 8, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("what", "mask", "x", "widths", "dropout"),
    [
        ("another device", PACKED, X.to("meta"), (64, 64), 0.0),
        ("a cache", replace(PACKED, query_index=torch.arange(600)), X, (64, 64), 0.0),
        ("branches", replace(PACKED, pairs=torch.ones(B, 600, 600, dtype=torch.bool)), X, (64, 64), 0.0),
        ("fp32", PACKED, X.float(), (64, 64), 0.0),
        ("fp16", PACKED, X.half(), (64, 64), 0.0),
        ("narrow heads", PACKED, X, (8, 8), 0.0),
        ("a width between", PACKED, X, (64, 96), 0.0),
        ("dropout of weights", PACKED, X, (64, 64), 0.1),
        ("short rows", PACKED, X[:, :100], (64, 64), 0.0),
    ],
)
def test_other_inputs_keep_the_dense_mask(
    what: str, mask: Mask, x: Tensor, widths: tuple[int, int], dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex_attention, "DEVICES", ("cpu",))
    assert PACKED.can_be_blocks and prefers_flex(X, (64, 128), 0.0)
    assert not (mask.can_be_blocks and prefers_flex(x, widths, dropout)), what


def test_autocast_decides_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "DEVICES", ("cpu",))
    with torch.autocast("cpu", torch.bfloat16):
        assert prefers_flex(X.float(), (64, 64), 0.0)


def test_transforms_of_torch_func_keep_the_dense_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "DEVICES", ("cpu",))
    found: list[bool] = []
    torch.vmap(lambda x: found.append(prefers_flex(x, (64, 64), 0.0)) or x)(X[None])
    assert found == [False]


def test_the_cpu_keeps_the_dense_mask() -> None:
    assert flex_attention.DEVICES in ((), ("cuda",))


THREE = replace(GPT, decoder=replace(GPT.decoder, n_layers=3))
NETWORKS: dict[str, tuple[TransformerConfig, int]] = {
    "one window": (THREE, 1),
    "two windows": (replace(THREE, decoder=replace(THREE.decoder, window_pattern=(4, 0))), 2),
    "groups, rotary, norms of heads": (replace(LLAMA, qk_norm=True), 1),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_layers_share_their_blocks(name: str, formulas: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are made once per forward and window; states equal those with the dense mask."""
    config, n_masks = NETWORKS[name]
    network = random_model(config, dtype=torch.float32).eval()
    given: dict[str, Any] = {"document_ids": packed(B, 20, 3)}
    given["attention_mask"] = given["document_ids"] >= 0
    ids = random_ids(config.vocab_size, B, 20)
    with torch.no_grad():
        expected = network(ids, **given)
        assert not formulas
        use_on_cpu(monkeypatch)
        assert_close(network(ids, **given), expected)
    assert formulas.count("create_block_mask") == n_masks
    assert formulas.count("flex_attention") == config.decoder.n_layers


@pytest.mark.parametrize(
    ("config", "how"),
    [
        (replace(GPT, positions=AlibiPositions()), {}),
        (GPT, {"tap": Recorder()}),
        (replace(GPT, attention_dropout=0.1), {}),
        (GPT, {"document_ids": None}),
    ],
    ids=["bias", "tap", "dropout", "no documents"],
)
def test_other_layers_keep_the_dense_mask(
    config: TransformerConfig, how: dict[str, Any], formulas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_on_cpu(monkeypatch)
    given = {"document_ids": packed(B, 20, 3)} | how
    random_model(config, dtype=torch.float32).train()(random_ids(19, B, 20), **given)
    assert not formulas


# Training


def losses(
    config: TransformerConfig, batches: list[Batch], compiled: bool, recompute: bool, has_one_shape: bool = False
) -> list[float]:
    """Train a step on each batch; return the losses."""
    network = random_model(config, seed=3, dtype=torch.float32)
    optimizer = build_optimizer(network, AdamWConfig(learning_rate=1e-2))
    how = {"compile": compiled, "activation_checkpointing": recompute}
    step = step_of(network, optimizer, has_one_shape=has_one_shape, **how)
    return [step([batch], [7]).nats for batch in batches]


@pytest.mark.parametrize(
    ("compiled", "recompute", "has_one_shape"),
    [(False, False, True), (True, True, True), (True, True, False)],
    ids=["eager", "compiled, recomputed", "compiled for several shapes, recomputed"],
)
def test_training_compiles_once_for_all_documents(
    compiled: bool, recompute: bool, has_one_shape: bool, graphs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses equal those with the dense mask.

    In a step that is compiled for one shape, FlexAttention is a part of its one graph; for several, a dense mask is.
    """
    from torch._dynamo.utils import counters

    windows = (3, 0) if compiled and has_one_shape else (3,)
    config = replace(LLAMA, decoder=replace(LLAMA.decoder, n_layers=len(windows), window_pattern=windows))
    batches = []
    for seed, n_tokens in enumerate((20, 20) if has_one_shape else (20, 17, 24)):
        documents, ids = packed(B, n_tokens, 4, seed), random_ids(19, B, n_tokens, seed=seed)
        labels = ids.roll(-1, dims=1)
        given = {"token_ids": ids, "labels": labels, "attention_mask": documents >= 0, "document_ids": documents}
        batches.append(Batch(n_targets=labels.numel(), **given))
    expected = losses(config, batches, False, recompute)
    assert not graphs
    use_on_cpu(monkeypatch)
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=compiled):
        found = losses(config, batches, compiled, recompute, has_one_shape)
    assert found == near(expected)
    n_graphs = counters["stats"]["unique_graphs"]
    if compiled:
        assert n_graphs == len(graphs) == 1, "traced once"
        assert graphs[0].count("higher_order.flex_attention(") == (2 if has_one_shape else 0)
    else:
        assert n_graphs == 2, "blocks and context"
