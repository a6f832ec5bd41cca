"""The solutions of the course as a package: equal to glassformer's models, to transformers and to their own steps."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import late
from glassformer.apps.course.mytransformer import (
    attention,
    bart,
    bert,
    block,
    embeddings,
    generate,
    gpt,
    look,
    recurrent,
    tokenizer,
    train,
    transformer,
    tune,
)
from glassformer.config.recurrent import AttendAfter, AttendBefore, ModelConfig, RecurrentConfig
from glassformer.config.transformer import SinusoidalPositions, Stack, TokenHead, TransformerConfig
from glassformer.models.build import build_model
from tolerances import NETWORK, assert_close

ROOT = Path(attention.__file__).parent
V, D, F, STACK = 11, 8, 12, Stack(2, 2, d_ff=12)
DECODER = TransformerConfig(decoder=STACK, d_model=D, vocab_size=V, max_len=9)
POST = replace(DECODER, decoder=None, encoder=STACK, norm_order="post", final_norm=False)
BOTH = replace(POST, decoder=STACK)
RECURRENT = RecurrentConfig(cell="gru", d_embedding=D, d_encoder=D, d_decoder=D, vocab_size=V, max_len=9)
SIDES = {"encoder.embeddings.tokens": "source.tokens", "decoder.embeddings.tokens": "target.tokens"}
SIDES |= {
    f"{one}.embeddings.positions.table": f"{other}.table"
    for one, other in zip(("encoder", "decoder"), ("source", "target"), strict=True)
}
SIDES |= {"encoder.embeddings.norm": "source_norm", "decoder.embeddings.norm": "target_norm"}
SIDES |= {"output.proj": "output", "encoder.blocks": "encoder", "decoder.blocks": "decoder"}
BERT = {"encoder.embeddings.token_types": "segments", "encoder.embeddings.norm": "norm", "encoder.": ""}
BERT |= {"output.transform.dense": "dense", "output.transform.norm": "dense_norm", "output.bias": "bias"}
CELLS = {"encoder.cells.weight_ih_l0_reverse": "encoder.backwards.weight_ih"}
for one in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
    CELLS |= {
        f"encoder.cells.{one}_l0_reverse": f"encoder.backwards.{one}",
        f"encoder.cells.{one}_l0": f"encoder.forwards.{one}",
    }
    CELLS |= {f"decoder.cells.{one}_l0": f"decoder.cell.{one}"}
CELLS |= {"decoder.cross_attn.q_proj": "decoder.query", "decoder.cross_attn.k_proj": "decoder.memory"}
CELLS |= {"decoder.cross_attn.vector": "decoder.vector", "bridge.hidden.0": "encoder.bridge", "output.proj": "output"}
PARTS = {**gpt.GLASSFORMER, "decoder": "decoder", "cross_attn": "cross", "cross_attn_norm": "cross_step.norm"}


def with_weights(config: ModelConfig) -> nn.Module:
    """Return a model of the package with weights that are large enough to affect the outputs."""
    model = build_model(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 2)
    return model


def loaded(mine: Any, theirs: nn.Module, names: dict[str, str], parts: dict[str, str]) -> Any:
    """Give my model their weights; `names` are beginnings of names, and `parts` the parts between dots."""
    tensors = {}
    for name, x in theirs.state_dict().items():
        for old, new in names.items():
            name = re.sub(rf"^{re.escape(old)}", new, name)
        tensors[name] = x
    train.load_weights(mine, train.renamed(tensors, parts))
    return mine.eval()


def ids_of(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


IS_TOKEN = torch.tensor([[1] * 5, [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
IS_SOURCE = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0], [1] * 4]).bool()


def test_the_package_imports_torch_and_python_alone() -> None:
    for path in ROOT.glob("*.py"):
        names = re.findall(r"^(?:from|import) (\.?\w*)", path.read_text("utf-8"), re.M)
        known = {
            "torch",
            "ctypes",
            "json",
            "math",
            "os",
            "re",
            "collections",
            "pathlib",
            "typing",
            "itertools",
            "contextlib",
        }
        assert {name for name in names if not name.startswith(".")} <= known | {"argparse", "sys", "dataclasses"}, (
            path.name
        )


def test_gpt_equals_the_package() -> None:
    theirs = with_weights(DECODER)
    mine = loaded(gpt.GPT(V, D, 2, F, 2, 9), theirs, {}, gpt.GLASSFORMER)
    ids = ids_of(3, 5)
    found, expected = mine(ids, IS_TOKEN), theirs(ids, attention_mask=IS_TOKEN)
    assert_close(found[IS_TOKEN], expected[IS_TOKEN], terms=NETWORK)


@pytest.mark.parametrize("is_bart", [False, True])
def test_the_transformer_and_bart_equal_the_package(is_bart: bool) -> None:
    config = replace(BOTH, positions=SinusoidalPositions(), activation="relu", embedding_scale=0.0, tie_output=False)
    if is_bart:
        config = replace(BOTH, embedding_norm=True, share_embeddings=True)
    theirs = with_weights(config)
    mine = loaded(transformer.Transformer(V, V, D, 2, F, 2, 9, is_bart), theirs, SIDES, PARTS)
    ids, source = ids_of(3, 5), ids_of(3, 4, seed=2)
    is_token = IS_TOKEN.clone()
    is_token[1] = True
    is_source = IS_SOURCE.clone()
    is_source[0] = True
    expected = theirs(ids, attention_mask=is_token, source_ids=source, source_attention_mask=is_source)
    assert_close(mine(ids, source, is_source)[is_token], expected[is_token], terms=NETWORK)


def test_bert_equals_the_package() -> None:
    head = TokenHead(transform=True, bias="learned")
    theirs = with_weights(replace(POST, embedding_norm=True, n_token_types=2, head=head))
    mine = loaded(bert.BERT(V, D, 2, F, 2, 9), theirs, BERT, PARTS)
    ids, segments = ids_of(3, 5), ids_of(3, 5, seed=2) % 2
    is_token = IS_TOKEN.clone()
    is_token[1] = True
    expected = theirs(ids, attention_mask=is_token, token_types=segments)
    assert_close(mine(ids, is_token, segments)[is_token], expected[is_token], terms=NETWORK)


@pytest.mark.parametrize(
    ("kind", "attends"),
    [(recurrent.BahdanauDecoder, AttendBefore()), (recurrent.LuongDecoder, AttendAfter(input_feeding=False))],
)
def test_recurrent_models_equal_the_package(kind: type[recurrent.BahdanauDecoder], attends: AttendBefore) -> None:
    theirs = with_weights(replace(RECURRENT, attention=attends))
    mine = loaded(recurrent.EncoderDecoder(V, V, D, kind), theirs, CELLS, {})
    ids, source = ids_of(3, 5), ids_of(3, 4, seed=2)
    full = torch.ones_like(IS_TOKEN)
    expected = theirs(ids, attention_mask=full, source_ids=source, source_attention_mask=IS_SOURCE)
    assert_close(mine(ids, source, IS_SOURCE), expected, terms=NETWORK)


def test_gpt_2_gives_its_weights(tmp_path: Path) -> None:
    transformers = late.optional("transformers")
    config = transformers.GPT2Config(vocab_size=V, n_positions=9, n_embd=D, n_layer=2, n_head=2, initializer_range=0.5)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    mine = gpt.from_gpt2(train.read_tensors(tmp_path / "model.safetensors"), 2)
    ids = ids_of(3, 5)
    assert_close(mine(ids), theirs(ids).logits, terms=NETWORK)


def test_files_of_tensors_are_those_of_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {"a": torch.randn(2, 3), "b": torch.tensor(7), "c": torch.randn(4).bfloat16()}
    train.write_tensors(tmp_path / "mine", tensors)
    save_file(tensors, tmp_path / "theirs")
    for found in (load_file(tmp_path / "mine"), train.read_tensors(tmp_path / "theirs")):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], x) and found[name].dtype == x.dtype for name, x in tensors.items())


def new_gpt(**sizes: float) -> gpt.GPT:
    torch.manual_seed(0)
    model = gpt.GPT(V, D, 2, F, 2, 9, **sizes)  # type: ignore[arg-type]
    block.draw_weights(model, 0.5)
    return model.eval()


def test_a_cache_changes_nothing() -> None:
    model, ids, cache = new_gpt(), ids_of(3, 7), None
    cache = model.new_cache()
    parts = [model(ids[:, a:b], cache=cache) for a, b in pairwise((0, 3, 4, 7))]
    assert_close(torch.cat(parts, dim=1), model(ids), terms=NETWORK)


def test_generation_with_a_cache_equals_reading_the_whole_text_again() -> None:
    model = new_gpt()
    for temperature in (0.0, 0.8):
        found = generate.generate(model, [1, 2], 7, temperature=temperature, k=5, p=0.9, seed=3)
        generator, ids = torch.Generator().manual_seed(3), [1, 2]
        for _ in range(7):
            logits = model(torch.tensor([ids]))[0, -1]
            if temperature:
                logits = generate.top_p(generate.top_k(logits / temperature, 5), 0.9)
            u = torch.rand((), generator=generator).item()
            ids.append(generate.draw(generate.with_temperature(logits, float(temperature > 0)), u))
        assert found == ids[2:]
    assert len(generate.generate(model, [1, 2], 30)) == 30


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_batched_beam_equals_the_search_of_each_source(alpha: float) -> None:
    torch.manual_seed(0)
    model = transformer.Transformer(V, V, D, 2, F, 2, 16).eval()
    block.draw_weights(model, 0.6)
    source, is_source = ids_of(6, 4), torch.ones(6, 4, dtype=torch.bool)
    is_source[1::2, 2:] = False
    end = generate.translate(model, source, is_source, 0, -1, beam=3, max_len=8)[0][5]  # an id that some rows reach
    found = generate.translate(model, source, is_source, 0, end, beam=3, max_len=8, alpha=alpha)
    for row, (ids, mask) in enumerate(zip(source.split(1), is_source.split(1), strict=True)):
        memory = model.encode(ids, mask)

        def next_log_p(so_far: list[int], memory: Tensor = memory, mask: Tensor = mask) -> Tensor:
            with torch.no_grad():
                return model.project(model.decode(torch.tensor([so_far]), memory, mask))[0, -1].log_softmax(-1)

        best, _ = generate.beam_search(next_log_p, 0, end, 3, 8, alpha)
        assert found[row] == [i for i in best if i != end]
    assert len({len(row) for row in found}) > 1


def batch(generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    inputs, labels = gpt.windows(torch.arange(200) % V, 4, 6, generator)
    return (inputs,), labels


def test_a_stopped_training_continues_to_the_bit(tmp_path: Path) -> None:
    def rate_of(step: int) -> float:
        return 0.01 * train.warmup_then_inverse_root(step, 3, 1.0)

    whole, parts = new_gpt(rate=0.2), new_gpt(rate=0.2)
    torch.manual_seed(5)
    expected = train.fit(whole, batch, 9, rate_of, tmp_path / "whole")
    torch.manual_seed(5)
    losses = train.fit(parts, batch, 4, rate_of, tmp_path / "parts")
    torch.manual_seed(77)
    losses += train.fit(new := new_gpt(rate=0.2), batch, 9, rate_of, tmp_path / "parts")
    assert losses == expected and losses[-1] < losses[0]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), new.parameters(), strict=True))


def test_evaluation_counts_every_label_once() -> None:
    model, generator = new_gpt(rate=0.5).train(), torch.Generator().manual_seed(0)
    (inputs,), labels = batch(generator)
    labels = labels.clone()
    labels[0, 2:] = -100
    loss, perplexity = train.evaluate(model, [((inputs[:1],), labels[:1]), ((inputs[1:],), labels[1:])])
    assert model.training
    expected = nn.functional.cross_entropy(model.eval()(inputs).flatten(0, 1), labels.flatten())
    assert loss == pytest.approx(expected.item()) and perplexity == pytest.approx(expected.exp().item())


TEXT = "The lowest of the lower towers, and the newest: it's 1,024 years old!\n\n  low, lower — naïve 日本.\n" * 3


@pytest.mark.parametrize("is_bytes", [False, True])
def test_the_tokenizer_learns_what_learn_merges_learns_and_loses_nothing(is_bytes: bool, tmp_path: Path) -> None:
    mine = tokenizer.Tokenizer.train(TEXT, 60, is_bytes)
    words = dict(Counter(tokenizer.pieces(TEXT, is_bytes)))
    assert mine.merges == tokenizer.learn_merges(words, 60)
    ids = mine.encode(TEXT)
    assert mine.decode(ids) == TEXT == mine.decode(mine.encode_longest(TEXT))
    assert [mine.symbols[i] for i in ids[:9]] == [
        s for p in tokenizer.pieces(TEXT, is_bytes) for s in tokenizer.encode(p, mine.merges)
    ][:9]
    mine.save(tmp_path / "t.json")
    assert tokenizer.Tokenizer.load(tmp_path / "t.json").__dict__ == mine.__dict__
    new = mine.encode("ж")
    assert (mine.decode(new) == "ж") == is_bytes and (new == [mine.ids["[UNK]"]]) != is_bytes
    rows, is_token = mine.pad([[5, 6, 7], [], [8]])
    assert rows.tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0]] and is_token.sum(dim=1).tolist() == [3, 0, 1]


def test_orders_factorised_tables_and_alibi() -> None:
    x = torch.randn(2, 3, D)
    for order in ("pre", "post", "sandwich"):
        step = block.Residual(D, order)
        norm = nn.LayerNorm(D)
        expected = {"pre": x + norm(x).sin(), "post": norm(x + x.sin()), "sandwich": x + norm(norm(x).sin())}
        assert_close(step(x, torch.sin), expected[order])
    with pytest.raises(ValueError, match="not middle"):
        block.Residual(D, "middle")
    table = embeddings.Embeddings(V, D, 9, "none", d_table=3)
    assert sum(p.numel() for p in table.parameters()) == 3 * V + 3 * D
    slopes = [2**-4, 2**-8]
    assert embeddings.alibi(2, 3)[:, 2].tolist() == [[-2 * s, -s, 0] for s in slopes]


@pytest.mark.parametrize("size", [1, 3, 4, 20])
def test_tiles_and_recomputation_change_nothing(size: int) -> None:
    query, key, value = torch.randn(3, 2, 2, 10, 4)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert_close(attention.attention_by_tiles(query, key, value, size), expected)
    layer, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), torch.randn(3, 4, requires_grad=True)
    found = []
    for f in (layer, lambda y: block.Recomputed.apply(y, layer)):
        layer.zero_grad()
        x.grad = None
        f(x).sin().sum().backward()
        found.append([p.grad.clone() for p in (x, *layer.parameters()) if p.grad is not None])
    assert_close(*found)


def test_instruments_equal_the_formula() -> None:
    model, ids = new_gpt(), ids_of(2, 5)
    streams = look.capture(model, ["blocks.0", "blocks.1"], ids)
    assert_close(look.lens(model, ids)[-1], model(ids))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert_close(look.weights_of(model, ids).sum(-1), torch.ones(2, 2, 2, 5))
    off = new_gpt()
    with torch.no_grad():
        off.blocks[1].attention.o.weight[:, D // 2 :] = 0  # type: ignore[union-attr,index,operator]
    assert_close(look.ablate(model, ids, 1, 1), off(ids), terms=NETWORK)
    patched = look.patch(model, ids, ids.flip(0), 1, 2)
    assert_close(patched[:, 2], model(ids.flip(0))[:, 2], terms=NETWORK)
    assert_close(patched[:, 3], model(ids)[:, 3], terms=NETWORK)
    assert streams["blocks.1"].shape == (2, 5, D)
    with pytest.raises(KeyError, match=r"blocks\.7"):
        look.capture(model, ["blocks.7"], ids)


def test_damage_of_bart() -> None:
    for seed in range(20):
        spans = bart.draw_spans(20, 0.3, torch.Generator().manual_seed(seed))
        assert sum(b - a for a, b in spans) == 6 and all(b < c for (_, b), (c, _) in pairwise(spans))
    rows = [list(range(4, 10)), list(range(4, 7))]
    (inputs, source, is_source), labels = bart.denoising_batch(rows, 0.3, 3, 0, 1, 2, torch.Generator().manual_seed(0))
    assert inputs.tolist() == [[0, *rows[0]], [0, *rows[1], 2, 2, 2]]
    assert labels.tolist() == [[*rows[0], 1], [*rows[1], 1, -100, -100, -100]]
    assert (source == 3).sum() >= 2 and is_source.sum() == (source != 2).sum()


def test_tuning() -> None:
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    mine = tune.LoRA(layer, 2, 8.0)
    assert torch.equal(mine(x), layer(x)) and not layer.weight.requires_grad
    nn.init.normal_(mine.b)
    assert_close(mine.merged()(x), mine(x))
    assert tune.template([("user", "Hi")], ask=True) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
