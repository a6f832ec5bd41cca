"""The model card of an export, `README.md`: what the model is, how to run it, what it was trained on, and its licence.

The hub of Hugging Face reads the YAML at its head (https://huggingface.co/docs/hub/model-cards).
"""

import json
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from glassformer.config.recurrent import ModelConfig
from glassformer.config.schema import to_dict, to_toml
from glassformer.config.transformer import TransformerConfig
from glassformer.evaluation.compare import describe_model
from glassformer.store import checkpoint
from glassformer.store.model_directory import StoredModel
from glassformer.tasks.requirements import BUILT_IN
from glassformer.training import metrics_log

NAME, SENTENCE_FILE = "README.md", "modules.json"
TAGS = {
    "sequence": "text-classification",
    "positions": "token-classification",
    "vectors": "feature-extraction",
}
"""The hub's task of each head, except that of tokens."""
PROGRAMS = {"hf": "transformers", "onnx": "onnx", "gguf": "gguf", "ct2": "ctranslate2"}
SETTINGS = ("model", "tokenizer", "objective", "lora", "train", "generation")
"""Tables of the configuration in the card."""
SENTENCES = """```python
from sentence_transformers import SentenceTransformer

print(SentenceTransformer("FOLDER_OR_NAME").encode(["…"]))
```"""
TRANSFORMERS = """```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("FOLDER_OR_NAME")
model = {architecture}.from_pretrained("FOLDER_OR_NAME")
inputs = tokenizer("…", return_tensors="pt")
{use}
```"""
GENERATE = "print(tokenizer.decode(model.generate(**inputs, max_new_tokens={n})[0]))"
WITHOUT_START = 'print(model(**inputs, decoder_input_ids=inputs["input_ids"]).logits)'
"""For an encoder-decoder without the id that starts its outputs."""
OTHERS = {
    "onnx": "```python\nimport onnxruntime\n\nfor file in {files}:\n"
    "    session = onnxruntime.InferenceSession(file)\n"
    "    print(file, [(x.name, x.shape) for x in session.get_inputs()])\n```",
    "gguf": '```shell\nllama-cli -m {files[0]} -p "…"\n```',
    "ct2": '```python\nimport ctranslate2\n\nmodel = ctranslate2.{kind}("FOLDER")\n```',
}


def write_card(stored: StoredModel, source: Path, folder: Path, to: str, licence: str | None) -> None:
    """Write the card into the folder of an export; `source` is the model directory, a run's folder or a checkpoint."""
    head = {
        "library_name": "sentence-transformers" if (folder / SENTENCE_FILE).exists() else PROGRAMS[to],
        "pipeline_tag": _task(stored.config, stored.run.objective.kind),
        "license": licence,
        "tags": ["glassformer"],
    }
    yaml = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items() if value is not None)
    ability = ""
    if facts := BUILT_IN.get(stored.run.objective.kind):
        ability = f" that learned to {facts.learned(stored.run)}"
    n_parameters = sum(parameter.numel() for parameter in stored.network.parameters())
    terms = f"`{licence}`" if licence else "The licence is unknown: ask the owner before you use or share the model."
    about = (
        f"A model{ability}: {describe_model(stored.config)}, {n_parameters:,} parameters, a vocabulary of "
        f"{stored.tokenizers.target.vocab_size:,} tokens. Made with glassformer."
    )
    sections = {
        "How to run it": _how_to_run(stored.config, folder, to),
        "Training": _training(stored, source),
        "Configuration": f"```toml\n{_settings(stored)}```",
        "Licence": terms,
    }
    body = "".join(f"\n\n## {title}\n\n{text}" for title, text in sections.items())
    (folder / NAME).write_text(f"---\n{yaml}---\n\n# {stored.run.name}\n\n{about}{body}\n", "utf-8")


def _task(config: ModelConfig, objective: str) -> str | None:
    """Return the hub's name of a model's task, or None if the hub has no name for it."""
    if objective == "seq2seq":
        return "translation"
    if not isinstance(config, TransformerConfig) or config.is_encoder_decoder:
        return None
    if config.head.kind in TAGS:
        return TAGS[config.head.kind]
    return "text-generation" if "decoder" in config.stacks else "fill-mask"


def _how_to_run(config: ModelConfig, folder: Path, to: str) -> str:
    if (folder / SENTENCE_FILE).exists():
        return SENTENCES
    is_encoder_decoder = isinstance(config, TransformerConfig) and config.is_encoder_decoder
    if to != "hf":
        kind = "Translator" if is_encoder_decoder else "Generator"
        if isinstance(config, TransformerConfig) and "decoder" not in config.stacks:
            kind = "Encoder"
        return OTHERS[to].format(files=sorted(path.name for path in folder.glob(f"*.{to}")), kind=kind)
    theirs = json.loads((folder / "config.json").read_text("utf-8"))
    (architecture,) = theirs["architectures"]
    use = "print(model(**inputs))"
    if architecture.endswith(("CausalLM", "LMHeadModel", "ConditionalGeneration", "MTModel")):
        use = GENERATE.format(n=max(1, min(40, config.max_len // 2)))
        if is_encoder_decoder and theirs.get("decoder_start_token_id") is None:
            use = WITHOUT_START
    return TRANSFORMERS.format(architecture=architecture, use=use)


def _training(stored: StoredModel, source: Path) -> str:
    """Return the facts of the training as a list, as far as the model directory has them."""
    run, step = stored.run, stored.manifest.step
    run_folder = source.parent.parent if source.parent.name == checkpoint.FOLDER else source
    lines = [f"Recipe `{run.name}`, step {step:,}."]
    if step == 0 and run.architecture:
        lines = ["The weights were imported, and not trained further."]
    data: Mapping[str, Any] = to_dict(run.data)
    if path := data.get("path"):
        lines.append(f"Data: `{_public(str(path))}`.")
    saved = checkpoint.path_of(run_folder, step)
    if (saved / checkpoint.STATE).exists() and (digest := checkpoint.load_numbers(saved).get("data_digest")):
        lines.append(f"SHA-256 of the data: `{digest}`.")
    for line in metrics_log.read_lines(run_folder / metrics_log.NAME):
        if line["step"] != step:
            continue
        numbers = {key: value for key, value in line.items() if key.startswith("eval/") and isinstance(value, float)}
        if numbers:
            shown = ", ".join(f"{key.removeprefix('eval/')} {value:.4f}" for key, value in numbers.items())
            lines.append(f"Evaluation at this step (nats per token for losses): {shown}.")
    return "\n".join(f"- {line}" for line in lines)


def _settings(stored: StoredModel) -> str:
    settings = to_dict(stored.run) | {"model": to_dict(stored.config)}
    if path := settings["tokenizer"].get("path"):
        settings["tokenizer"] |= {"path": _public(path)}
    return to_toml({name: settings[name] for name in SETTINGS if settings.get(name) is not None}).lstrip("\n")


def _public(path: str) -> str:
    r"""Return a path of this machine without its folders; names of the package and of the hub stay.

    >>> _public("/home/me/book.txt"), _public("C:\\Users\\me\\book.txt"), _public("hf:me/book")
    ('book.txt', 'book.txt', 'hf:me/book')
    """
    return path if path.startswith(("builtin:", "hf:")) else PureWindowsPath(path).name
