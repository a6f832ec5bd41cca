"""Export to ONNX: the forward pass as one graph, which is compared in onnxruntime with the original model.

The graph takes any number of rows and tokens. Its inputs are `token_ids` and `attention_mask`; an encoder-decoder also
has `source_ids` and `source_attention_mask`, and a model with token types has `token_types`. All inputs are required.
Its outputs are the `logits`, and the `hidden` states that the head turns into logits.

Letters: B batch, T length, S source length, D d_model, V vocabulary.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer import files
from glassformer.config.recurrent import ModelConfig
from glassformer.config.schema import to_dict
from glassformer.config.transformer import TransformerConfig
from glassformer.errors import UserError, first_line, needs
from glassformer.interop.runtimes.recurrent_scan import ScannedRecurrent
from glassformer.models.recurrent import RecurrentModel
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import LABELS, SOURCE_TOKENIZER, TOKENIZER, StoredModel

GRAPH = "model.onnx"
TOLERANCE = 1e-4
"""Allowed difference, × max(1, largest logit): another order of summation in fp32 causes a tenth of it."""
TRACED = (2, 6, 7)
CHECKED = ((1, 1, 1), (2, 9, 5), (5, 4, 8))
"""(B, T, S), up to the maximum lengths of the model: all ones, then sizes above and below the traced ones."""

Inputs = dict[str, Tensor]


def write_onnx(stored: StoredModel, folder: Path) -> list[str]:
    """Write `model.onnx`, tokenizers and label names into an empty folder; return the lines of the report.

    Weights above 1.5 GB go into the separate file `model.onnx.data`. The graph is run in onnxruntime on three shapes
    other than the traced one. Raises `UserError` if the logits differ, the export fails, or a package is missing.
    """
    with needs("ONNX", "export"), _quiet():  # all three are needed
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    config, network = stored.config, stored.network
    if min(config.max_len, config.encoder_max_len) < 2:
        raise UserError("max_len: expected at least 2 for an ONNX graph that takes any length, got 1")
    graph = _Forward(network).eval()
    inputs = made_up_inputs(config, *TRACED)
    with _quiet():
        program = _exported(graph, inputs)
        program.model.metadata_props["config"] = json.dumps(to_dict(config))  # special ids, for decoding
        program.save(folder / GRAPH)
        opset = program.model.opset_imports[""]
        difference, largest = _difference(network, onnxruntime, folder / GRAPH, config)
    if not difference <= TOLERANCE * max(1.0, largest):  # written so that NaN fails
        raise UserError(
            f"the logits of onnxruntime {onnxruntime.__version__} differ by {difference:.1e} (largest logit "
            f"{largest:.1f}): nothing was exported; try another version of onnxruntime"
        )
    stored.tokenizer.save(folder / TOKENIZER)
    if stored.source_tokenizer is not None:
        stored.source_tokenizer.save(folder / SOURCE_TOKENIZER)
    if stored.labels:
        files.write_json(folder / LABELS, list(stored.labels))
    size = sum(path.stat().st_size for path in folder.glob(f"{GRAPH}*"))
    shapes = ", ".join(f"{b} × {min(t, config.max_len)}" for b, t, _ in CHECKED)
    return [
        f"{GRAPH}: opset {opset}, {size / 1e6:,.1f} MB; inputs {', '.join(inputs)}; outputs logits, hidden",
        f"onnxruntime {onnxruntime.__version__}: logits differ by at most {difference:.1e} (largest logit "
        f"{largest:.1f}), on batches of {shapes} tokens with padding",
        ", ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith(GRAPH))),
    ]


class _Forward(nn.Module):
    """The network with the inputs and outputs of the graph."""

    def __init__(self, network: Transformer | RecurrentModel) -> None:
        super().__init__()
        self.network = ScannedRecurrent(network) if isinstance(network, RecurrentModel) else network

    def forward(
        self,
        token_ids: Tensor,
        attention_mask: Tensor,
        source_ids: Tensor | None = None,
        source_attention_mask: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        names = ("source_ids", "source_attention_mask", "token_types")
        others = zip(names, (source_ids, source_attention_mask, token_types), strict=True)
        given: dict[str, Any] = {name: x for name, x in others if x is not None}
        hidden = self.network.hidden(token_ids, attention_mask, **given)
        return self.network.head(hidden, attention_mask), hidden


def made_up_inputs(config: ModelConfig, n_rows: int, n_tokens: int, n_source: int) -> Inputs:
    """Return random tokens: odd rows have padding at the end, even rows at the beginning, and row 0 has no padding.

    Lengths are limited to the maximum lengths of the model.
    """
    generator = torch.Generator().manual_seed(0)

    def ids(n: int, length: int) -> Tensor:
        return torch.randint(n, (n_rows, length), generator=generator)

    def mask(length: int) -> Tensor:
        place, row = torch.arange(length), torch.arange(n_rows)[:, None]
        n_padding = row.clamp(max=length - 1)
        return torch.where(row % 2 == 1, place < length - n_padding, place >= n_padding)

    n_tokens, n_source = min(n_tokens, config.max_len), min(n_source, config.encoder_max_len)
    inputs = {"token_ids": ids(config.vocab_size, n_tokens), "attention_mask": mask(n_tokens)}
    if config.is_encoder_decoder:
        inputs["source_ids"] = ids(config.encoder_vocab_size, n_source)
        inputs["source_attention_mask"] = mask(n_source)
    elif isinstance(config, TransformerConfig) and config.n_token_types:
        inputs["token_types"] = ids(config.n_token_types, n_tokens)
    return inputs


@torch.no_grad()
def _exported(graph: nn.Module, inputs: Inputs) -> torch.onnx.ONNXProgram:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    lengths = {name: "source_length" if name.startswith("source") else "length" for name in inputs}
    try:
        program = torch.onnx.export(
            graph,
            kwargs=inputs,
            input_names=list(inputs),
            output_names=["logits", "hidden"],
            dynamic_shapes={name: {0: "batch", 1: length} for name, length in lengths.items()},
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = first_line(error.__cause__ or error)
        raise UserError(f"torch {torch.__version__} cannot export this model to ONNX: {reason}") from error
    assert program is not None  # only the older exporter returns None
    ClearMetadataAndDocStringPass()(program.model)  # removes stack traces, which have paths of source files
    return program


@torch.no_grad()
def _difference(
    network: Transformer | RecurrentModel, onnxruntime: Any, path: Path, config: ModelConfig
) -> tuple[float, float]:
    """Return the largest difference of the logits at real tokens, and the network's largest logit."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only; warnings list every constant that it drops
    options.intra_op_num_threads = torch.get_num_threads()
    differences, sizes = [], []
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for shape in CHECKED:
            inputs = made_up_inputs(config, *shape)
            (theirs,) = session.run(["logits"], {name: x.numpy() for name, x in inputs.items()})
            ours, theirs = network(**inputs), torch.from_numpy(theirs)
            if ours.dim() == 3:  # outputs at padding have no meaning
                ours, theirs = ours[inputs["attention_mask"]], theirs[inputs["attention_mask"]]
            differences.append((ours - theirs).abs().max())
            sizes.append(ours.abs().max())
    except Exception as error:  # its exceptions have no common base class
        raise UserError(f"onnxruntime {onnxruntime.__version__} cannot run the graph: {first_line(error)}") from error
    return float(torch.stack(differences).max()), float(torch.stack(sizes).max())


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings and log messages of the exporter in the block."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
