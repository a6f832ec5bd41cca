"""`glassformer export`: write a model directory in the format of another program, and check the result.

Each export has a model card, `README.md`: what the model is, how to run it, what it was trained on, and its licence.
The hub of Hugging Face reads the YAML at its head (https://huggingface.co/docs/hub/model-cards).
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Literal, get_args

from glassformer.common import files
from glassformer.common.errors import UserError, needs
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import Run
from glassformer.config.transformer import TransformerConfig
from glassformer.store import checkpoint
from glassformer.store.model_directory import StoredModel, own_paths, read_model
from glassformer.tasks.requirements import BUILT_IN
from glassformer.training import metrics_log

if TYPE_CHECKING:
    from glassformer.apps.inspector.web_file import Dtype as WebDtype
    from glassformer.model import Model

Target = Literal["hf", "onnx", "gguf", "ct2", "web"]
Dtype = Literal["float32", "float16", "bfloat16", "int8"]
DTYPES: Mapping[str, tuple[Dtype, ...]] = {
    "gguf": ("float32", "float16", "bfloat16"),
    "web": ("float32", "bfloat16", "int8"),
}
"""The dtypes that the matrices may have in each target. The targets that are missing here have float32 only."""
TARGETS: Mapping[str, str] = {
    "hf": "glassformer.apps.interop.hf",
    "onnx": "glassformer.apps.interop.runtimes.onnx",
    "gguf": "glassformer.apps.interop.runtimes.gguf",
    "ct2": "glassformer.apps.interop.runtimes.ct2",
    "web": "glassformer.apps.interop.export",
}
"""The module of each target. Its `write_TARGET(stored, folder)` fills a folder (for `web`, it writes a file), checks
the result, and returns a report."""


@dataclass(frozen=True)
class Exported:
    """Result of an export: the folder, or the file of the target `web`, and the lines of the report."""

    folder: Path
    said: tuple[str, ...]


def export(
    model: "Model | str | Path",
    out: str | Path,
    to: Target = "hf",
    *,
    step: int | None = None,
    dtype: Dtype = "float32",
    license: str | None = None,
) -> Exported:
    """Export a model directory, or a loaded model, to the new folder `out` for transformers, ONNX, GGUF or CTranslate2.

    The folder has a model card, `README.md`, with the licence `license`, such as `mit`, if you give one. The target
    `web` writes an HTML file that runs the model in a browser. `step` selects a checkpoint of a run; `dtype` is the
    dtype of the matrices in GGUF and in a page. Raises `UserError`, and writes nothing, if the target cannot represent
    the model exactly, or if the written files compute different outputs.
    """
    # Arguments, before torch is imported
    if to not in get_args(Target):
        raise UserError(f"unknown export target {to!r}: choose one of {', '.join(get_args(Target))}")
    dtypes = DTYPES.get(to, ("float32",))
    if dtype not in dtypes:
        raise UserError(
            f"dtype: expected {' or '.join(dtypes)} for the target {to}, got {dtype}; only {' and '.join(DTYPES)} have "
            "other dtypes"
        )
    if license is not None and to == "web":
        raise UserError("license is for the model card in a folder, but the target web writes one file")
    if license is not None and (not license or not all(letter.isalnum() or letter in "-._" for letter in license)):
        raise UserError(f"license: expected an identifier such as mit or apache-2.0, got {license!r}")
    if not isinstance(model, (str, os.PathLike)):
        return _export_loaded(model, out, to, step, dtype, license)
    folder, out = files.as_path(model, "model"), files.as_path(out, "out")
    path = checkpoint.find(folder, step)
    if to == "web" and out.suffix != ".html":
        raise UserError(f"{out}: expected the name of an HTML file for the target web, such as {out.stem}.html")
    if to == "web" and os.path.lexists(out):
        raise UserError(f"{out} already exists: name another file")
    files.require_new_folder(out, own_paths(folder))
    # Write
    stored = read_model(path)
    _require_plain(stored.run, folder)
    if to == "web":
        return Exported(out, tuple(write_checked(stored, out, to, dtype)))
    with files.new_folder(out) as new:
        report = write_checked(stored, new, to, dtype)
        write_card(stored, path, new, to, license)
    return Exported(out, tuple(report))


def _export_loaded(
    model: "Model", out: str | Path, to: Target, step: int | None, dtype: Dtype, license: str | None
) -> Exported:
    from glassformer.model import Model  # imports torch

    if not isinstance(model, Model):
        raise UserError(f"model must be a path or a model of load(), not {type(model).__name__}")
    if step is not None:
        raise UserError("step selects a checkpoint of a run folder: pass the folder, or use load(folder, step=…)")
    _require_plain(model.run, model.name)
    with tempfile.TemporaryDirectory() as folder:  # to write the weights that are in memory
        return export(model.save(Path(folder) / "model"), out, to, dtype=dtype, license=license)


def _require_plain(run: Run, name: str | Path) -> None:
    if run.lora is not None:
        raise UserError(f"{name} has LoRA adapters: run `glassformer merge {name} --out …`, then export the result")


def write_checked(stored: StoredModel, folder: Path, to: Target, dtype: Dtype = "float32") -> list[str]:
    """Write the export into an existing, empty folder, or to the file of `web`; return the lines of the report."""
    options = {} if dtype == "float32" else {"dtype": dtype}
    report: list[str] = getattr(import_module(TARGETS[to]), f"write_{to}")(stored, folder, **options)
    n_named = {"gguf": 2, "ct2": 0}.get(to, len(stored.generation.end_ids))
    if unnamed := stored.generation.end_ids[n_named:]:
        ends = ", ".join(map(str, unnamed))
        report.append(
            f"the files do not name all end tokens: give the ids of the others ({ends}) to the program that generates"
        )
    return report


def write_web(stored: StoredModel, file: Path, dtype: "WebDtype" = "float32") -> list[str]:
    """Write the page of a model; return the lines of the report.

    The page compares its logits with those of PyTorch when it opens. Raises `UserError` if the page cannot compute the
    model.
    """
    import torch

    with needs("the page", "serve"):
        from glassformer.apps.inspector.web_file import checked_logits, require_web, web_file
    from glassformer.tasks.trained_model import TrainedModel

    network, tokenizers = stored.network.cpu().eval(), stored.tokenizers
    device, step = torch.device("cpu"), stored.manifest.step
    model = TrainedModel(network, tokenizers, stored.generation, stored.run, device, stored.labels, step=step)
    require_web(model)
    exact = torch.tensor(checked_logits(model)["logits"])
    files.write_text(file, web_file(model, dtype))
    report = [f"{file.name}: {file.stat().st_size / 1e6:,.1f} MB, the weights in {dtype}"]
    if dtype != "float32":
        rounded = torch.tensor(checked_logits(model)["logits"])
        difference, largest = float((rounded - exact).abs().max()), float(exact.abs().max())
        report.append(f"the rounded weights change logits by {difference:.1e} (largest logit {largest:.1f})")
    report.append("the page compares its logits with PyTorch's when it opens, and makes no request to any host")
    return report


TAGS = {"sequence": "text-classification", "positions": "token-classification", "vectors": "feature-extraction"}
"""The hub's name of the task for each kind of head, except the token head."""
LIBRARIES = {"hf": "transformers", "onnx": "onnx", "gguf": "gguf", "ct2": "ctranslate2"}
CODE = {
    "sentence-transformers": """python
from sentence_transformers import SentenceTransformer

print(SentenceTransformer("FOLDER_OR_NAME").encode(["…"]))""",
    "transformers": """python
from transformers import AutoTokenizer, {kind}

tokenizer = AutoTokenizer.from_pretrained("FOLDER_OR_NAME")
model = {kind}.from_pretrained("FOLDER_OR_NAME")
inputs = tokenizer("…", return_tensors="pt")
print({use})""",
    "onnx": """python
import onnxruntime

for file in {files}:
    session = onnxruntime.InferenceSession(file)
    print(file, [(x.name, x.shape) for x in session.get_inputs()])""",
    "gguf": 'shell\nllama-cli -m {files[0]} -p "…"',
    "ctranslate2": 'python\nimport ctranslate2\n\nmodel = ctranslate2.{kind}("FOLDER")',
}
"""For each library, code that runs an export."""


def write_card(stored: StoredModel, source: Path, folder: Path, to: str, licence: str | None) -> None:
    """Write the model card into an export's folder; `source` is the model directory, run folder or checkpoint."""
    from glassformer.evaluation.compare import describe_model  # imports torch

    config, run = stored.config, stored.run
    library = "sentence-transformers" if (folder / "modules.json").exists() else LIBRARIES[to]
    tag = _tag(config, run.objective.kind)
    head = {"library_name": library, "pipeline_tag": tag, "license": licence, "tags": ["glassformer"]}
    yaml = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items() if value is not None)
    facts = BUILT_IN.get(run.objective.kind)
    ability = f" that learned to {facts.learned(run)}" if facts else ""
    n_parameters = sum(parameter.numel() for parameter in stored.network.parameters())
    terms = f"`{licence}`" if licence else "The licence is unknown: ask the owner before you use or share the model."
    (folder / "README.md").write_text(
        f"---\n{yaml}---\n\n# {run.name}\n\n"
        f"A model{ability}: {describe_model(config)}, {n_parameters:,} parameters, a vocabulary of "
        f"{stored.tokenizers.target.vocab_size:,} tokens. Made with glassformer.\n\n"
        f"## How to run it\n\n```{_code(config, library, folder)}\n```\n\n"
        f"## Training\n\n{_training(stored, source)}\n\n## Licence\n\n{terms}\n",
        "utf-8",
    )


def _tag(config: ModelConfig, objective: str) -> str | None:
    if objective == "seq2seq":
        return "translation"
    if not isinstance(config, TransformerConfig) or config.is_encoder_decoder:
        return None
    return TAGS.get(config.head.kind, "text-generation" if config.decoder else "fill-mask")


def _code(config: ModelConfig, library: str, folder: Path) -> str:
    kind = "Translator" if config.is_encoder_decoder else "Generator" if getattr(config, "decoder", None) else "Encoder"
    use = "model(**inputs)"
    if library == "transformers":
        theirs = json.loads((folder / "config.json").read_text("utf-8"))
        (kind,) = theirs["architectures"]
        if kind.endswith(("CausalLM", "LMHeadModel", "ConditionalGeneration", "MTModel")):
            n = max(1, min(40, config.max_len // 2))
            use = f"tokenizer.decode(model.generate(**inputs, max_new_tokens={n})[0])"
            if config.is_encoder_decoder and theirs.get("decoder_start_token_id") is None:
                use = 'model(**inputs, decoder_input_ids=inputs["input_ids"]).logits'
    files = sorted(path.name for path in folder.glob("*.onnx" if library == "onnx" else "*.gguf"))
    return CODE[library].format(kind=kind, use=use, files=files)


def _training(stored: StoredModel, source: Path) -> str:
    run, step = stored.run, stored.manifest.step
    run_folder = source.parent.parent if source.parent.name == checkpoint.FOLDER else source
    lines = [f"Recipe `{run.name}`, step {step:,}."]
    if step == 0 and run.architecture:
        lines = ["The weights were imported, and not trained further."]
    if path := getattr(run.data, "path", None):  # without the folders of this machine
        name = path if path.startswith(("builtin:", "hf:")) else PureWindowsPath(path).name
        lines.append(f"Data: `{name}`.")
    saved = checkpoint.path_of(run_folder, step)
    if (saved / checkpoint.STATE).exists() and (digest := checkpoint.load_numbers(saved).get("data_digest")):
        lines.append(f"SHA-256 of the data: `{digest}`.")
    for line in metrics_log.read_lines(run_folder / metrics_log.NAME):
        values = {name: x for name, x in line.items() if name.startswith("eval/") and isinstance(x, float)}
        if values and line["step"] == step:
            shown = ", ".join(f"{name.removeprefix('eval/')} {x:.4f}" for name, x in values.items())
            lines.append(f"Evaluation at this step (nats per token for losses): {shown}.")
    return "\n".join(f"- {line}" for line in lines)
