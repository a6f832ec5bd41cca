"""The model card of an export, `README.md`: what the model is, how to run it, what it was trained on, and its licence.

The hub of Hugging Face reads the YAML at its head (https://huggingface.co/docs/hub/model-cards).
"""

import json
from pathlib import Path, PureWindowsPath

from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import TransformerConfig
from glassformer.evaluation.compare import describe_model
from glassformer.store import checkpoint
from glassformer.store.model_directory import StoredModel
from glassformer.tasks.requirements import BUILT_IN
from glassformer.training import metrics_log

TAGS = {"sequence": "text-classification", "positions": "token-classification", "vectors": "feature-extraction"}
"""The hub's task of each head, except that of tokens."""
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
"""Code that runs an export, by the library that reads it."""


def write_card(stored: StoredModel, source: Path, folder: Path, to: str, licence: str | None) -> None:
    """Write the card into the folder of an export; `source` is the model directory, a run's folder or a checkpoint."""
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
    """Return the hub's name of a model's task, or None if the hub has no name for it."""
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
    """Return the facts of the training as a list, as far as the model directory has them."""
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
