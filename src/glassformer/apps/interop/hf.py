"""Export to transformers: a folder of the first model family that can represent the model exactly."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.interop import sentence_files, tokenizer_files
from glassformer.apps.interop.directory import CONFIG, GENERATION, MAX_SHARD_BYTES, HFFolder, quiet, write_weights
from glassformer.apps.interop.families import FAMILIES
from glassformer.apps.interop.family import Family, matches
from glassformer.apps.interop.generation import token_ids, write_generation
from glassformer.apps.interop.importing import MULTI_LABEL, find_family, read_config, read_weights
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.config.schema import to_dict
from glassformer.config.transformer import PositionHead, SequenceHead, TokenHead, TransformerConfig, VectorHead
from glassformer.config.written import toml_value
from glassformer.models.build import undrawn_model
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import StoredModel, weights_of

TOLERANCE = 1e-5
"""Allowed difference of logits, in units of max(1, largest logit): the effect of the order of summation in fp32."""
WRITTEN_FOR = "5.23.0"
"""Version of transformers that the files are written for."""
Inputs = dict[str, Tensor]
ONE_TEXT = {"token_ids": "input_ids", "attention_mask": "attention_mask", "token_types": "token_type_ids"}
PAIR = {"source_ids": "input_ids", "source_attention_mask": "attention_mask"}
PAIR |= {"token_ids": "decoder_input_ids", "attention_mask": "decoder_attention_mask"}
"""For each argument of a network, the name in transformers, for a model that reads one text (`ONE_TEXT`) or a
`PAIR`."""


def write_hf(stored: StoredModel, folder: Path, max_shard_bytes: int = MAX_SHARD_BYTES) -> list[str]:
    """Write configuration, weights and tokenizer, read them back and compare; return the lines of the report."""
    config, network = transformer_of(stored, "transformers")
    # Write
    family = choose_family(config, stored.run.architecture)
    config, ours = family.recast(config, weights_of(network))
    architecture = family.architecture(config)
    weights = to_theirs(family, config, ours)
    n_bytes = write_weights(weights.items(), folder, max_shard_bytes)
    tokenizer_files.write_tokenizers(stored, folder)
    report = [f"{family.name} ({architecture}): {len(weights):,} tensors, {n_bytes:,} bytes"]
    report += write_settings(stored, family, config, folder)
    if isinstance(config.head, VectorHead) and family.drawn and config.head.pooler == "none":
        report.append("no pooler is stored: transformers initialises one randomly; sentence vectors do not use it")
    if config != stored.config:
        report.append(f"rewritten as an equivalent model: {', '.join(changes(stored.config, config))}")
    # Read back and compare
    compare_weights(folder, weights)
    del ours, weights  # each is as large as the model
    difference = compare_read_back(folder, network)
    what = "vectors" if architecture in family.bare else "logits"
    report.append(f"read back: all tensors are identical, and {what} differ by at most {difference:.1e}")
    # Load with transformers and compare
    with_theirs = compare_with_transformers(folder, family, architecture, network)
    if with_theirs is None:
        return [*report, "transformers is not installed: the comparison with it was skipped"]
    return [*report, f"loaded with transformers: {what} differ by at most {with_theirs:.1e}"]


def transformer_of(stored: StoredModel, program: str) -> tuple[TransformerConfig, Transformer]:
    """Return configuration and network; raise `UserError` for a recurrent model, which `program` cannot represent."""
    if not isinstance(stored.config, TransformerConfig) or not isinstance(stored.network, Transformer):
        raise UserError(
            f"{program} has no recurrent encoder-decoder: use the model with glassformer, or export it with --to web"
        )
    return stored.config, stored.network


def write_settings(stored: StoredModel, family: Family, config: TransformerConfig, folder: Path) -> list[str]:
    """Write configuration, generation defaults and sentence-transformers modules; return lines for the report.

    `config` is the configuration of the model as the family represents it.
    """
    named = replace(config, bos_id=tokenizer_files.trained_start(stored))
    problem = {"problem_type": MULTI_LABEL} if getattr(stored.run.data, "outputs", None) == "multi_label" else {}
    files.write_json(folder / CONFIG, their_config(family, named, stored.labels) | problem)
    if isinstance(config.head, VectorHead):
        return sentence_files.write_modules(config.head, config, folder)
    generates = isinstance(config.head, TokenHead) and config.decoder is not None
    if generates and family.architecture(config) not in family.bare:
        generation = write_generation(named, stored.generation, stored.tokenizers.target)
        files.write_json(folder / GENERATION, {"transformers_version": WRITTEN_FOR} | generation)
    return []


def changes(before: ModelConfig, after: ModelConfig) -> list[str]:
    """Return the fields of a configuration that changed, with their new values."""
    was, now = to_dict(before), to_dict(after)
    return [f"{name} {_value(now[name])}" for name in now if now[name] != was[name]]


def _value(value: Any) -> str:
    """Format a value as TOML, on one line."""
    if not isinstance(value, dict):
        return toml_value(value)
    return f"({', '.join(f'{key} {_value(x)}' for key, x in value.items() if x is not None)})"


def choose_family(config: TransformerConfig, architecture: str = "") -> Family:
    """Return the first family that can represent a configuration; the family of `architecture` is tried first.

    `architecture` is the class that the model was imported from. If no family can, raises `UserError` with the nearest.
    """
    families = sorted(FAMILIES, key=lambda family: architecture not in family.heads)  # the sort is stable
    misfits: list[tuple[list[str], Family]] = []
    for family in families:
        misfits.append((family.misfits(config), family))
        if not misfits[-1][0]:
            return family
    reasons, nearest = min(misfits, key=lambda pair: (pair[1].stacks != config.stacks.keys(), len(pair[0])))
    raise UserError(
        f"no model family of transformers can represent this model exactly; the nearest is {nearest.name}, which does "
        f"not fit: {'; '.join(reasons)}"
    )


def to_theirs(family: Family, config: TransformerConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert all tensors of a model to the tensors of transformers."""
    theirs: dict[str, Tensor] = {}
    for rule in family.rules(config):
        theirs |= rule.to_theirs(weights)
    theirs |= {name: theirs[copied].clone() for name, copied in family.unread.items() if copied in theirs}
    if family.stores_fixed:
        theirs |= family.fixed(config)
    if family.architecture(config) in family.bare:
        return {name.removeprefix(family.prefix): x for name, x in theirs.items()}
    return theirs


def their_config(family: Family, config: TransformerConfig, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return `config.json`, with family and shared keys. Missing ids are null, so transformers uses no defaults."""
    common: dict[str, Any] = {
        "architectures": [family.architecture(config)],
        "model_type": family.model_type,
        "dtype": "float32",
        "torch_dtype": "float32",  # for readers older than transformers 4.56
        "transformers_version": WRITTEN_FOR,
        "is_encoder_decoder": config.is_encoder_decoder,
        **token_ids(config),
    }
    if labels or isinstance(config.head, (SequenceHead, PositionHead)):
        names = labels or tuple(f"LABEL_{i}" for i in range(config.n_outputs))
        common |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    return common | family.write(config)


def compare_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise `UserError` unless reading the folder, as an import does, returns every written tensor unchanged."""
    written = HFFolder.open(folder)
    with written.reading() as take:  # one tensor at a time
        if weights.keys() != written.tensors.keys() or not all(torch.equal(x, take(n)) for n, x in weights.items()):
            raise UserError("the file read back differs from the data written: nothing was exported; check the disk")


def compare_read_back(folder: Path, network: Transformer) -> float:
    """Return the largest difference of logits to an import of the folder; raise `UserError` if it is too large."""
    written = HFFolder.open(folder)
    family, architecture = find_family(written)
    config, _ = read_config(written, family, architecture)
    config = replace(config, decoder_start_id=network.config.decoder_start_id)
    return compare_weights_read(config, read_weights(written, family, config), network)


def compare_weights_read(config: TransformerConfig, weights: Mapping[str, Tensor], network: Transformer) -> float:
    """Return the largest difference of logits to a network with these weights; raise `UserError` if it is too large."""
    with torch.no_grad():
        return _compare(network, filled(config, weights), _own_outputs, "outputs of the model read back")


@torch.no_grad()
def filled(config: TransformerConfig, weights: Mapping[str, Tensor]) -> Transformer:
    """Return a network with these weights."""
    network = undrawn_model(config).eval()
    assert isinstance(network, Transformer)
    for name, x in weights_of(network).items():
        x.copy_(weights[name])
    return network


def compare_with_transformers(folder: Path, family: Family, architecture: str, network: Transformer) -> float | None:
    """Return the largest difference of logits (hidden states without a head) to transformers; None if not installed.

    Raises `UserError` if it exceeds `TOLERANCE`, or if transformers reports missing or unknown tensors.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "IProgress not found")  # tqdm, in a notebook without ipywidgets
            import transformers
    except ImportError:
        return None
    with quiet(transformers.utils.logging), torch.no_grad():
        theirs, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
        drawn = {name for name in info["missing_keys"] if matches(name, family.drawn)}
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
        if wrong := [name for kind in kinds for name in info[kind] if name not in drawn]:
            raise UserError(
                f"transformers reports missing or unknown tensors: {', '.join(sorted(map(str, wrong))[:8])}; "
                "nothing was exported"
            )
        is_bare = architecture in family.bare
        what = "vectors of transformers" if is_bare else "logits of transformers"
        pooler = getattr(network.config.head, "pooler", "none")
        return _compare(network, theirs.eval(), partial(_their_outputs, pooler=pooler), what, is_bare)


def _compare(
    network: Transformer,
    other: nn.Module,
    outputs: Callable[[Any, Inputs], list[Tensor]],
    what: str,
    is_bare: bool = False,
) -> float:
    """Return the largest difference to the `outputs` of another network; raise `UserError` if it exceeds `TOLERANCE`.

    `what` names the outputs in the error. If `is_bare`, hidden states are compared, since the model has no logits.
    Large weights cause larger rounding errors: then both networks are compared again in double precision.
    """
    inputs = example_inputs(network.config)
    difference, is_fine = _difference(_own_outputs(network, inputs, is_bare), outputs(other, inputs))
    if not is_fine:
        network.double(), other.double()
        difference, is_fine = _difference(_own_outputs(network, inputs, is_bare), outputs(other, inputs))
        network.float()  # restores the weights bit for bit
    if not is_fine:
        raise UserError(f"the {what} differ by {difference:.2e}: nothing was exported")
    return difference


def _difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> tuple[float, bool]:
    pairs = list(zip(ours, theirs, strict=False))  # transformers may lack the sentence vector
    differences = [(float((x - y).abs().max()), float(y.abs().max())) for x, y in pairs]
    return max(d for d, _ in differences), all(d <= TOLERANCE * max(1.0, largest) for d, largest in differences)


def _own_outputs(network: Transformer, inputs: dict[str, Any], is_bare: bool = False) -> list[Tensor]:
    """Return the logits; without a head, the last hidden states; of a vector head, these states and the vectors."""
    if isinstance(network.config.head, VectorHead):
        return [network.hidden(**inputs), network(**inputs)]
    if is_bare:
        return [network.hidden(**inputs)]
    return [network(**inputs)]


def _their_outputs(theirs: Any, inputs: Inputs, pooler: str) -> list[Tensor]:
    """Return the logits, or else the last hidden states, with the pooler's output if the vector head uses it."""
    outputs = theirs(**their_inputs(inputs))
    if "logits" in outputs:
        return [outputs["logits"]]
    if pooler in ("tanh", "relu"):
        return [outputs["last_hidden_state"], outputs["pooler_output"]]
    return [outputs["last_hidden_state"]]


def example_inputs(
    config: TransformerConfig, n_rows: int = 3, n_tokens: int = 17, n_source: int = 17, padded: bool = False
) -> Inputs:
    """Return random arguments of a network with a fixed seed, within its maximum lengths.

    If `padded`, odd rows have padding at the end, even rows at the beginning. Row 0 and the target of a
    Transformer that reads a source have no padding.
    """
    generator = torch.Generator().manual_seed(1)

    def ids(n_ids: int, length: int) -> Tensor:
        return torch.randint(n_ids, (n_rows, length), generator=generator)

    def mask(length: int) -> Tensor:
        column, row = torch.arange(length), torch.arange(n_rows)[:, None]
        n_padding = row.clamp(max=length - 1) if padded else torch.zeros_like(row)
        return torch.where(row % 2 == 1, column < length - n_padding, column >= n_padding)

    # Ids
    n_tokens, n_source = min(n_tokens, config.max_len), min(n_source, config.encoder_max_len)
    token_ids = ids(config.vocab_size, n_tokens)
    if config.pad_id is not None:  # transformers may treat it as padding at any position
        token_ids[token_ids == config.pad_id] = (config.pad_id + 1) % config.vocab_size
    if config.reads_text_twice and config.eos_id is not None:  # BART reads the vector of the last end token
        token_ids[token_ids == config.eos_id] = (config.eos_id + 1) % config.vocab_size
        token_ids[:, -1] = config.eos_id
    # Masks and the second text
    if has_source(config):
        source_ids = ids(config.encoder_vocab_size, n_source)
        if config.pad_id is not None:  # a model may count the positions without padding
            source_ids[source_ids == config.pad_id] = (config.pad_id + 1) % config.encoder_vocab_size
        return {"token_ids": token_ids, "source_ids": source_ids, "source_attention_mask": mask(n_source)}
    inputs = {"token_ids": token_ids, "attention_mask": mask(n_tokens)}
    if config.n_token_types:
        inputs["token_types"] = ids(config.n_token_types, n_tokens)
    return inputs


def has_source(config: TransformerConfig) -> bool:
    """Return True if a network reads a source besides the target."""
    return config.is_encoder_decoder and not config.reads_text_twice


def their_inputs(inputs: Inputs) -> Inputs:
    """Rename the arguments of a network to those of transformers and ONNX graphs, and make masks of integers."""
    names = PAIR if "source_ids" in inputs else ONE_TEXT
    return {names[name]: x.long() for name, x in inputs.items()}
