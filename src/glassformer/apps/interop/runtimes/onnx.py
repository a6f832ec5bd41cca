"""Export to ONNX: the forward pass as graphs, which are compared in onnxruntime with the original model.

Files, inputs and outputs have the names that optimum and transformers.js expect. Ids and masks are int64, and a mask
has 1 for a real token. The graphs take any number of rows and tokens, and have no cache.

| model | file | inputs | outputs |
|---|---|---|---|
| one stack | `model.onnx` | `input_ids`, `attention_mask`, with token types also `token_type_ids` | by the head |
| encoder-decoder | `encoder_model.onnx` | `input_ids`, `attention_mask` | `last_hidden_state` |
| | `decoder_model.onnx` | `input_ids`, `encoder_attention_mask`, `encoder_hidden_states` | by the head |

Outputs are `logits` and `last_hidden_state`; of a vector head, `last_hidden_state` and `sentence_embedding`.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.interop import hf, tokenizer_files
from glassformer.apps.interop.directory import CONFIG
from glassformer.common import files
from glassformer.common.errors import UserError, first_line, needs
from glassformer.config.schema import to_dict
from glassformer.config.transformer import TransformerConfig, VectorHead
from glassformer.models import blocks
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import LABELS, StoredModel, weights_of

GRAPH, ENCODER, DECODER = "model.onnx", "encoder_model.onnx", "decoder_model.onnx"
TOLERANCE = 1e-4
"""Allowed difference, in units of max(1, largest logit). Another order of summation in fp32 causes a tenth of it."""
TRACED = (2, 6, 7)
CHECKED = ((1, 1, 1), (2, 9, 5), (5, 4, 8))
"""Compared sizes (B, T, S), up to the model's maximum lengths: ones, then above and below the traced sizes."""

MEMORY, MEMORY_MASK = "encoder_hidden_states", "encoder_attention_mask"


def write_onnx(stored: StoredModel, folder: Path) -> list[str]:
    """Write graphs, configuration and tokenizers into an empty folder; return the lines of the report.

    Weights above 1.5 GB go into a separate file with the ending `.onnx.data`. The graphs are run in onnxruntime on
    three shapes other than the traced one. Raises `UserError` if the logits differ, the export fails, or a package is
    missing.
    """
    with needs("ONNX", "export"), _quiet():  # all three are needed
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    config, network = hf.transformer_of(stored, "the ONNX export")
    if config.experts is not None:
        raise UserError("the ONNX export has no experts: export to transformers, without --to onnx")
    if min(config.max_len, config.encoder_max_len) < 2:
        raise UserError("max_len: expected at least 2 for an ONNX graph that takes any length, got 1")
    # Write the graphs
    sessions, report = {}, []
    with _quiet():
        for graph in graphs_of(network):
            program = _exported(graph)
            program.model.metadata_props["config"] = json.dumps(to_dict(config))  # special ids, for decoding
            program.save(folder / graph.file)
            size = sum(path.stat().st_size for path in folder.glob(f"{graph.file}*"))
            report.append(
                f"{graph.file}: opset {program.model.opset_imports['']}, {size / 1e6:,.1f} MB; inputs "
                f"{', '.join(graph.inputs)}; outputs {', '.join(graph.outputs)}"
            )
            sessions[graph.file] = _session(onnxruntime, folder / graph.file)
        # Run them and compare
        difference, largest = _difference(network, sessions)
    if not difference <= TOLERANCE * max(1.0, largest):  # written so that NaN fails
        raise UserError(
            f"the logits of onnxruntime {onnxruntime.__version__} differ by {difference:.1e} (largest logit "
            f"{largest:.1f}): nothing was exported; try another version of onnxruntime"
        )
    shapes = ", ".join(f"{b} × {min(t, config.max_len)}" for b, t, _ in CHECKED)
    report.append(
        f"onnxruntime {onnxruntime.__version__}: logits differ by at most {difference:.1e} (largest logit "
        f"{largest:.1f}), on batches of {shapes} tokens with padding"
    )
    # Files beside the graphs
    if stored.labels:
        files.write_json(folder / LABELS, list(stored.labels))
    report += _write_settings(stored, folder)
    return [*report, ", ".join(sorted(path.name for path in folder.iterdir() if ".onnx" not in path.name))]


def _write_settings(stored: StoredModel, folder: Path) -> list[str]:
    tokenizer_files.write_tokenizers(stored, folder)
    config, network = hf.transformer_of(stored, "the ONNX export")
    try:
        family = hf.choose_family(config, stored.run.architecture)
    except UserError:
        return [f"no {CONFIG}: no model family of transformers fits, and onnxruntime reads the graphs alone"]
    report = hf.write_settings(stored, family, family.recast(config, weights_of(network))[0], folder)
    files.write_json(folder / CONFIG, files.read_json(folder / CONFIG) | {"use_cache": False})
    return report


@dataclass(frozen=True)
class Graph:
    """A graph to export: its file, the function that computes it, example inputs, and the names of its outputs."""

    file: str
    module: nn.Module
    inputs: hf.Inputs
    outputs: tuple[str, ...]


class _Whole(nn.Module):
    """A network with the inputs and outputs of `model.onnx`, by their names there."""

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.network = network.eval()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        real = attention_mask != 0
        hidden = self.network.hidden(input_ids, real, token_types=token_type_ids)
        return _outputs(self.network.config, self.network.head(hidden, real), hidden)


class _Encoder(_Whole):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        memory = self.network.encode(input_ids, attention_mask != 0)
        assert memory is not None
        return memory


class _Decoder(_Whole):
    """The decoder and the head of an encoder-decoder. The decoder is causal, so tokens after the target may be any."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, encoder_attention_mask: Tensor, encoder_hidden_states: Tensor
    ) -> tuple[Tensor, ...]:
        assert self.network.decoder is not None
        real = torch.ones_like(input_ids, dtype=torch.bool)  # a mask, because a kernel's causal rule cannot be traced
        inputs = blocks.Inputs(real, source_attention_mask=encoder_attention_mask != 0, memory=encoder_hidden_states)
        hidden = self.network.decoder(input_ids, inputs)
        return _outputs(self.network.config, self.network.head(hidden), hidden)


def _outputs(config: TransformerConfig, output: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    if output_names(config)[0] == "last_hidden_state":
        return hidden, output
    return output, hidden


def output_names(config: TransformerConfig) -> tuple[str, ...]:
    """Return the names of a graph's outputs, which the head determines."""
    if isinstance(config.head, VectorHead):
        return "last_hidden_state", "sentence_embedding"
    return "logits", "last_hidden_state"


def graphs_of(network: Transformer) -> list[Graph]:
    """Return the graphs of a network."""
    config = network.config
    inputs, outputs = hf.their_inputs(hf.example_inputs(config, *TRACED, padded=True)), output_names(config)
    if not hf.has_source(config):
        return [Graph(GRAPH, _Whole(network), inputs, outputs)]
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    target = {"input_ids": inputs["decoder_input_ids"], MEMORY_MASK: inputs["attention_mask"]}
    target[MEMORY] = torch.randn(*source["input_ids"].shape, network.config.d_model)
    return [
        Graph(ENCODER, _Encoder(network), source, ("last_hidden_state",)),
        Graph(DECODER, _Decoder(network), target, outputs),
    ]


@torch.no_grad()
def _exported(graph: Graph) -> "torch.onnx.ONNXProgram":
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    lengths = dict.fromkeys(graph.inputs, "sequence_length")
    if MEMORY in graph.inputs:
        lengths |= dict.fromkeys((MEMORY, MEMORY_MASK), "encoder_sequence_length")
    try:
        program = torch.onnx.export(
            graph.module,
            kwargs=graph.inputs,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes={name: {0: "batch_size", 1: length} for name, length in lengths.items()},
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = first_line(error.__cause__ or error)
        raise UserError(f"torch {torch.__version__} cannot export this model to ONNX: {reason}") from error
    assert program is not None  # only the older exporter returns None
    ClearMetadataAndDocStringPass()(program.model)  # removes stack traces, which have paths of source files
    return program


def _session(onnxruntime: Any, path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only; warnings list every constant that it drops
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base class
        raise UserError(f"onnxruntime {onnxruntime.__version__} cannot read the graph: {first_line(error)}") from error


def run_graphs(sessions: Mapping[str, Any], inputs: hf.Inputs) -> dict[str, Tensor]:
    """Run a model's sessions (by file) on the inputs that `their_inputs` returns; return the outputs by name."""
    feeds = {name: x.numpy() for name, x in inputs.items()}
    last = sessions.get(GRAPH)
    if last is None:
        last = sessions[DECODER]
        names = ("input_ids", "attention_mask")
        (memory,) = sessions[ENCODER].run(["last_hidden_state"], {name: feeds[name] for name in names})
        feeds = {"input_ids": feeds["decoder_input_ids"], MEMORY_MASK: feeds["attention_mask"], MEMORY: memory}
    names = tuple(output.name for output in last.get_outputs())
    return dict(zip(names, map(torch.from_numpy, last.run(names, feeds)), strict=True))


@torch.no_grad()
def _difference(network: Transformer, sessions: Mapping[str, Any]) -> tuple[float, float]:
    """Return the largest difference of the outputs at real tokens, and the network's largest output."""
    differences, sizes = [], []
    for shape in CHECKED:
        inputs = hf.example_inputs(network.config, *shape, padded=True)
        try:
            outputs = run_graphs(sessions, hf.their_inputs(inputs))
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise UserError(f"onnxruntime cannot run the graph: {first_line(error)}") from error
        expected, mask = network(**inputs), inputs.get("attention_mask")
        (name,) = (name for name in output_names(network.config) if name != "last_hidden_state")
        is_per_token = mask is not None and not network.config.reads_whole_sequence
        real = mask if is_per_token else ...  # outputs at padding have no meaning
        differences.append((expected[real] - outputs[name][real]).abs().max())
        sizes.append(expected.abs().max())
    return float(torch.stack(differences).max()), float(torch.stack(sizes).max())


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
