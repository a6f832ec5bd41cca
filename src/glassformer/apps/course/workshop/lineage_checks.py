"""Check that, with the same weights, the reader's models give the logits and gradients of the package's models."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.apps.course.workshop.checking import LIMIT_SECONDS, Verdict, judged, tensor_difference, told, within
from glassformer.apps.course.workshop.exercises import every_exercise
from glassformer.apps.course.workshop.solutions import LINEAGES_FILE
from glassformer.config.recurrent import AttendAfter, AttendBefore, ModelConfig, RecurrentConfig
from glassformer.config.transformer import SinusoidalPositions, Stack, TokenHead, TransformerConfig
from glassformer.models.build import build_model

V, D, STACK = 11, 8, Stack(2, 2, d_ff=12)
GPT = TransformerConfig(decoder=STACK, d_model=D, vocab_size=V, max_len=9, qkv_bias=False, attn_out_bias=False)
POST_NORM = replace(GPT, decoder=None, encoder=STACK, norm_order="post", final_norm=False)
BOTH = replace(POST_NORM, decoder=STACK, share_embeddings=True)
RECURRENT = RecurrentConfig(cell="gru", d_embedding=D, d_encoder=D, d_decoder=D, vocab_size=V, max_len=9)


def sizes(file: Any, config: TransformerConfig) -> Any:
    """Return the sizes of a configuration for the classes of the reader's file."""
    stack = config.head_stack
    return file.Sizes(
        config.vocab_size,
        d_model=config.d_model,
        n_heads=stack.n_heads,
        n_layers=stack.n_layers,
        d_ff=stack.d_ff,
        max_len=config.max_len,
        eps=config.norm_eps,
    )


@dataclass(frozen=True)
class Lineage:
    """A model of the reader's functions, and the configuration of the package's model that it must equal."""

    name: str
    config: ModelConfig
    build: Callable[[Any, Any], nn.Module]
    """Function that builds the reader's model from the reader's module and a configuration like `config`."""
    file: str = LINEAGES_FILE


EVERY_LINEAGE = (
    Lineage(
        "bahdanau",
        replace(RECURRENT, attention=AttendBefore()),
        lambda file, config: file.Recurrent(file.BahdanauDecoder, config.vocab_size, config.d_decoder),
    ),
    Lineage(
        "luong",
        replace(RECURRENT, attention=AttendAfter(input_feeding=False)),
        lambda file, config: file.Recurrent(file.LuongDecoder, config.vocab_size, config.d_decoder),
    ),
    Lineage(
        "transformer",
        replace(BOTH, positions=SinusoidalPositions(), activation="relu", embedding_scale=0.0),
        lambda file, config: file.Transformer(sizes(file, config)),
    ),
    Lineage(
        "bart",
        replace(BOTH, embedding_norm=True),
        lambda file, config: file.Transformer(sizes(file, config), is_2017=False),
    ),
    Lineage(
        "bert",
        replace(
            POST_NORM,
            embedding_norm=True,
            n_token_types=2,
            norm_eps=1e-12,
            head=TokenHead(transform=True, bias="learned"),
        ),
        lambda file, config: file.BERT(sizes(file, config)),
    ),
    Lineage("gpt", GPT, lambda file, config: file.GPT(sizes(file, config))),
)


def judged_lineage(lineage: Lineage, file: ModuleType, limit: float = LIMIT_SECONDS) -> Verdict:
    """Compare a model of the reader's file with the package's, for at most `limit` seconds."""
    if not hasattr(file, "__file__"):
        return Verdict(lineage.name, "empty", "glassformer course assemble writes it, when its functions are written.")
    return within(limit, lineage.name, lambda: _judged(lineage, file))


def _judged(lineage: Lineage, file: ModuleType) -> Verdict:
    theirs, inputs = package_model(lineage.config), padded_rows(lineage)
    expected = Outputs(theirs, inputs)
    assert file.__file__ is not None
    with names_called(file.__file__) as called:
        try:
            mine = lineage.build(file, lineage.config)
            mine.load_state_dict(theirs.state_dict())
            found = Outputs(mine, inputs)
        except (Exception, SystemExit) as error:
            sentence = f"It raises {told(error, file.__file__)}"
            return Verdict(lineage.name, "wrong", sentence + _cause(file, called))
    where = found.differences(expected)
    if not where:
        return Verdict(lineage.name, "right")
    return Verdict(lineage.name, "wrong", where + _cause(file, called))


def _cause(file: ModuleType, called: set[str]) -> str:
    """Return a sentence about the first called function that is not right, in the order of the chapters."""
    for name, exercise in every_exercise().items():
        if name in called and not (verdict := judged(exercise, getattr(file, name))).is_right:
            return f" In {LINEAGES_FILE}.py, {verdict}"
    return " The functions that it calls are right: look at its classes."


def package_model(config: ModelConfig) -> nn.Module:
    """Return the package's model with random weights that are large enough to affect the outputs."""
    model = build_model(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 2)
    return model


def padded_rows(lineage: Lineage) -> dict[str, Tensor]:
    """Return ids with padding at both ends, and the segments of BERT or the sources of an encoder-decoder."""
    generator = torch.Generator().manual_seed(1)
    inputs = {"token_ids": torch.randint(V, (3, 5), generator=generator)}
    inputs["attention_mask"] = torch.tensor([[1] * 5, [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    if lineage.config.is_encoder_decoder:
        inputs["source_ids"] = torch.randint(V, (3, 4), generator=generator)
        inputs["source_attention_mask"] = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0], [1] * 4]).bool()
    if getattr(lineage.config, "n_token_types", 0):
        inputs["token_types"] = torch.randint(2, (3, 5), generator=generator)
    return inputs


@contextmanager
def names_called(path: str) -> Iterator[set[str]]:
    """Collect the names of the functions of a file that this thread calls."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == path:
            names.add(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(before)


def gradient_of(weight: nn.Parameter) -> Tensor:
    """Return the gradient of a weight; zeros if the loss does not depend on it."""
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


class Outputs:
    """The logits of a model for padded rows, the outputs of its parts, and the gradients of its loss."""

    def __init__(self, model: nn.Module, inputs: dict[str, Tensor]) -> None:
        self.masks = [mask for name, mask in inputs.items() if name.endswith("mask")]
        self.of_parts: dict[str, Tensor] = {}
        """The first output of each part, in the order in which the parts end."""
        hooks = [part.register_forward_hook(self._keep(name)) for name, part in model.named_modules() if name]
        try:
            self.logits = model(**inputs)
        finally:
            for hook in hooks:
                hook.remove()
        labels = inputs["token_ids"].masked_fill(~inputs["attention_mask"], -100)
        F.cross_entropy(self.logits.flatten(0, 1), labels.flatten()).backward()
        self.gradients = {name: gradient_of(weight) for name, weight in model.named_parameters()}

    def _keep(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(part: nn.Module, given: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.of_parts.setdefault(name, output)

        return keep

    def differences(self, expected: "Outputs") -> str:
        """Return how the logits differ, and which part differs first, or how gradients differ; "" if they are equal."""
        if where := self._difference(self.logits, expected.logits):
            both = (name for name in expected.of_parts if name in self.of_parts)
            differs = (name for name in both if self._difference(self.of_parts[name], expected.of_parts[name]))
            return f"The logits differ, {where}. The first part that differs is {next(differs, 'the output')}."
        for name, gradient in expected.gradients.items():
            if where := tensor_difference(self.gradients[name], gradient):
                return f"The logits are right, and the gradient of {name} differs, {where}."
        return ""

    def _difference(self, found: Tensor, expected: Tensor) -> str:
        """Return how two outputs differ, with zeros at padding of the target or the source."""
        for mask in self.masks:
            if all(x.dim() == 3 and x.shape[:2] == mask.shape for x in (found, expected)):
                found, expected = (x.masked_fill(~mask[..., None], 0.0) for x in (found, expected))
        return tensor_difference(found, expected)
