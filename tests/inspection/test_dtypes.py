"""Every public call of inspection, and the forward pass, in every dtype; the readable attention equals the fused one.

The grid: every position scheme with each bound and norm of the scores, and other kinds of networks, in fp32, bf16,
fp16 and under autocast.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from configs import CONFIGS, GPT, RECURRENT, Recorder, random_inputs, random_model
from glassformer import inspection
from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.inspection.head_scores import network_scores
from glassformer.inspection.lens import lens_labels
from glassformer.inspection.measures import measure_of
from glassformer.inspection.strongest import Units, activities
from glassformer.models.transforms import convert
from glassformer.nn.attention import MultiHeadAttention
from glassformer.tasks.reporting import Outcome

POSITIONS = ("gpt", "no_positions", "sinusoidal_halves", "llama", "alibi", "relative")
CHANGES: dict[str, dict[str, Any]] = {
    "bounded_scores": {"score_cap": 2.0, "qk_norm": True},
    "bounded_logits": {"logit_cap": 3.0},
}
OTHERS = ("bert_alibi", "sandwich", "experts", "fused_qkv", "d_embedding", "paper")
GRID: dict[str, ModelConfig] = {
    **{name: (CONFIGS | RECURRENT)[name] for name in (*POSITIONS, *OTHERS, "bahdanau", "luong")},
    **{f"{name}_{how}": replace(CONFIGS[name], **CHANGES[how]) for name, how in product(POSITIONS, CHANGES)},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "autocast": None}
WRONG = 5


def network_in(config: ModelConfig, dtype: torch.dtype | None) -> Any:
    network = random_model(config, dtype=torch.float32)
    if dtype not in (None, torch.float32):
        convert(network, dtype)
    return network


def calls(network: Any) -> dict[str, Callable[[], Any]]:
    """Return every call that takes a network and one row of inputs."""
    found, config = random_inputs(network, 1), network.config
    inputs = {"token_ids": found.token_ids, **found.others}
    changed = next(name for name in inputs if name in ("source_ids", "token_ids"))
    corrupted = inputs | {changed: (inputs[changed] + 1) % 19}
    part = inspection.all_parts(network)[:1]

    def traced(names: Any = inspection.STANDARD) -> dict[str, Tensor]:
        return inspection.capture_tensors(network, inputs, names)

    def changed_by_a_trace() -> Tensor:
        """Replace each tensor by that of a trace, which is in fp32."""
        stored = traced()
        with inspection.model_hooks(network, {"*": lambda name, _: stored.get(name)}):
            return network(**inputs)

    def ablated() -> Tensor:
        with inspection.ablate(network, part, traced(("*.context", "*.ff", "*_norm"))):
            return network(**inputs)

    def effects() -> Any:
        return inspection.effects(network, inputs, measure_of(network, inputs), part).changes.values()

    those: dict[str, Callable[[], Any]] = {"forward": lambda: network(**inputs), "trace": lambda: traced().values()}
    those |= {"ablate": ablated, "effects": effects}
    if not isinstance(config, TransformerConfig):
        return those
    units = f"{config.head_stack_name}.0"
    those |= {
        "hooks": changed_by_a_trace,
        "head scores": lambda: [
            x for layers in network_scores(network, inputs).values() for x in layers[0].heads[0].values()
        ],
        "strongest heads": lambda: activities(network, inputs, Units.parse(f"{units}.head"))[1:],
        "strongest neurons": lambda: activities(network, inputs, Units.parse(f"{units}.neuron"))[1:],
    }
    if isinstance(config.head, TokenHead):
        pair = inspection.Patching(inputs, corrupted, 3, WRONG)
        those |= {
            "lens": lambda: inspection.lens_cells(network, traced(), lens_labels(network, inputs)).top_probabilities,
            "attribution": lambda: [x.value for x in inspection.attribute(network, inputs, 3, WRONG).terms.values()],
            "patch": lambda: inspection.patch_residual(network, pair).shares,
            "patch heads": lambda: inspection.patch_heads(network, pair).shares,
            "estimate": lambda: inspection.patch_pairs(network, [pair], "heads")[1].shares,
        }
    return those


def is_finite(x: Any) -> bool:
    if isinstance(x, Tensor):
        return bool(x.isfinite().all())
    return all(is_finite(one) if isinstance(one, Tensor) else not math.isinf(one) for one in x)


@contextmanager
def compared(network: Any) -> Iterator[list[str]]:
    """Compare each attention of a forward pass with its readable formulas; yield the differences beyond the bound.

    A score of at most S in size has an error of S u, u the unit roundoff of the dtype: the error of a weight is 2 S u
    of the weight. Rounded weights and contexts add u each, so that a context errs by (2 S + 2) u V, V the largest
    value. Both paths err, and the output projection multiplies the error by its largest row sum, and rounds too.
    """
    beyond: list[str] = []

    def check(attention: MultiHeadAttention, args: Any, named: dict[str, Any], output: Tensor) -> None:
        if named.get("tap") is not None or named.get("step") is not None:
            return
        tap, bias = Recorder(), named["mask"].bias if named.get("mask") is not None else None
        readable = attention(*args, **(named | {"tap": tap}))
        unit = torch.finfo(output.dtype).eps
        size = float(tap.seen["scores"].abs().max()) + (0.0 if bias is None else 2 * float(bias.abs().max()))
        bound = 2 * (2 * size + 2) * unit * float(tap.seen["value"].abs().max())
        if attention.out_proj is not None:
            width = attention.n_heads * attention.d_head
            rows = attention.out_proj(torch.eye(width, dtype=output.dtype)).float()
            bound = bound * float(rows.abs().sum(dim=0).max()) + 2 * width * unit * float(output.abs().max() + 1)
        worst = float((readable - output).abs().max())
        if not worst <= bound or readable.dtype != output.dtype:
            beyond.append(f"{worst} is beyond {bound}, or {readable.dtype} is not {output.dtype}")

    for module in [x for x in network.modules() if isinstance(x, MultiHeadAttention)]:
        module.register_forward_hook(check, with_kwargs=True)
    yield beyond


@pytest.mark.parametrize("name", GRID)
def test_every_call_works_in_every_dtype(name: str) -> None:
    failures: list[str] = []
    for dtype in DTYPES:
        network = network_in(GRID[name], DTYPES[dtype])
        for what, call in calls(network).items():
            try:
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
                    if not is_finite(call()):
                        failures.append(f"{dtype} {what}: not finite")
            except UserError:
                assert call_is_refused_in_fp32(name, what), (dtype, what)
            except Exception as error:  # every failure of the grid in one message
                failures.append(f"{dtype} {what}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)


def call_is_refused_in_fp32(name: str, what: str) -> bool:
    with pytest.raises(UserError):
        calls(network_in(GRID[name], torch.float32))[what]()
    return True


@pytest.mark.parametrize("name", [name for name, config in GRID.items() if isinstance(config, TransformerConfig)])
def test_the_readable_attention_equals_the_fused_one_in_every_dtype(name: str) -> None:
    for dtype in DTYPES:
        network = network_in(GRID[name], DTYPES[dtype])
        inputs = random_inputs(network, 2)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast")
        with compared(network) as beyond, autocast, torch.no_grad():
            network(inputs.token_ids, **inputs.others)
        assert not beyond, (dtype, beyond)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_step_of_training_under_autocast_has_finite_gradients(positions: str) -> None:
    network = random_model(replace(CONFIGS[positions], score_cap=2.0), dtype=torch.float32).train()
    with torch.autocast("cpu", torch.bfloat16):
        network(random_inputs(network).token_ids).float().sum().backward()
    assert all(bool(x.grad.isfinite().all()) for x in network.parameters() if x.grad is not None)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_methods_of_a_model_work_in_every_dtype(trained: Outcome, dtype: str) -> None:
    model = glassformer.load(trained.folder, device="cpu")
    config = replace(GPT, positions=CONFIGS["alibi"].positions, vocab_size=len(model.tokenizer), score_cap=2.0)
    model = replace(model, network=network_in(config, DTYPES[dtype]), dtype=dtype)
    text = "one two three"
    assert model.logit_lens(text).tokens and model.logit_attribution(text).terms and model.attention(text)
    assert is_finite(model.embed(text)) and model.strongest_texts([text, "two"], "decoder.0.head").texts(0)
    assert inspection.find_heads(model, text) and inspection.effects_of_texts(model, [text]).changes
    assert model.generate(text, max_new_tokens=2) != ""
