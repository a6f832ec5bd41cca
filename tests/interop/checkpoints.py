"""Tiny random checkpoints of transformers and of glassformer, for the tests of every family."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import glassformer
from glassformer.apps.interop.directory import HFFolder
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.common import files
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import Run
from glassformer.model import Model
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import weights_of, write_model_files
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

TEXT = "to be, or not to be: that is the question. Ist es edler im Gemüt? 1601 "
VOCAB = 290
"""Rows of the token tables of tiny models: more than the tokens of `tiny_tokenizer`, as padded real tables have."""


def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT * 4], vocab_size=280)


def randomise(network: nn.Module, seed: int = 1) -> None:
    """Change every stored float parameter and buffer from its initial value: norms are not 1, biases are not 0.

    Frozen parameters and computed buffers, such as sinusoids, do not change.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        learned = [x for x in network.parameters() if x.requires_grad]
        stored = network.state_dict()
        for x in [*learned, *(x for name, x in network.named_buffers() if name in stored)]:
            if x.is_floating_point():
                x.add_(torch.randn(x.shape, generator=draw) * 0.2)


def one_bias(theirs: Any) -> None:
    """Copy the bias: an untied head of transformers 5 adds its projection's bias, and stores another unused one."""
    heads = [getattr(theirs, name, None) for name in ("lm_head", "predictions")]
    head = next(
        (head for head in heads if head is not None), getattr(getattr(theirs, "cls", None), "predictions", None)
    )
    if isinstance(getattr(head, "bias", None), torch.Tensor) and hasattr(head, "decoder"):
        head.bias.copy_(head.decoder.bias)


def prepared(theirs: Any) -> None:
    """Apply `one_bias`, and round norms to bfloat16, as published files have them: 1 + weight is exact in float32."""
    one_bias(theirs)
    for name, x in theirs.named_parameters():
        if "norm" in name:
            x.copy_(x.bfloat16())


def save(theirs: Any, folder: Path, tokenizer: Tokenizer | None = None, **shards: Any) -> Path:
    """Save a folder with transformers and a tokenizer of glassformer; `shards`: `max_shard_size="4KB"`."""
    theirs.save_pretrained(folder, **shards)
    tokenizer = tokenizer or tiny_tokenizer()
    tokenizer.save(folder / "tokenizer.json")
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "bos", "eos", "cls", "sep", "mask")}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **roles}))
    return folder


def tensors(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of a folder, by its name in the files."""
    opened = HFFolder.open(folder)
    with opened.reading() as take:
        return {name: take(name) for name in opened.tensors}


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@dataclass(frozen=True)
class Both:
    """A checkpoint of transformers and the model that was imported from it."""

    theirs: Any
    ours: Model
    hf: Path
    folder: Path

    @property
    def network(self) -> Transformer:
        assert isinstance(self.ours.network, Transformer)
        return self.ours.network

    def assert_same(self, mask: bool = False, seed: int = 0) -> None:
        """Check logits and last hidden states within 1e-5 × max(1, largest), with padding and without."""
        config = self.network.config
        draw = torch.Generator().manual_seed(seed)
        n_rows, n_tokens, n_source = 3, 11, 8

        def drawn(n: int, vocab_size: int) -> Tensor:
            return torch.randint(vocab_size, (n_rows, n), generator=draw)

        def real(n: int) -> Tensor:
            return torch.arange(n) < torch.linspace(n // 2, n, n_rows).long()[:, None]

        ids = drawn(n_tokens, config.vocab_size)
        if config.pad_id is not None:  # some models of transformers treat it as padding at every position
            ids[ids == config.pad_id] = (config.pad_id + 1) % config.vocab_size
        keep = real(n_tokens) if mask else torch.ones(n_rows, n_tokens, dtype=torch.bool)
        if config.pad_id is not None:  # a classifier of transformers finds the last token by this id
            ids[~keep] = config.pad_id
        mine: dict[str, Any] = {"token_ids": ids, "attention_mask": keep if mask else None}
        if config.reads_text_twice:
            ids[ids == config.eos_id] = 5  # BART reads the vector of the last end token
            ids[range(n_rows), keep.sum(dim=1) - 1] = config.eos_id
        if config.is_encoder_decoder and not config.reads_text_twice:
            source = drawn(n_source, config.encoder_vocab_size)
            source[source == config.pad_id] = 5
            source_mask = real(n_source) if mask else None
            mine |= {"source_ids": source, "source_attention_mask": source_mask}
            other: dict[str, Any] = {"input_ids": source, "decoder_input_ids": ids}
            other["attention_mask"] = None if source_mask is None else source_mask.long()
            other["decoder_attention_mask"] = keep.long() if mask else None
        else:
            other = {"input_ids": ids, "attention_mask": keep.long() if mask else None}
            if config.n_token_types:
                mine["token_types"] = other["token_type_ids"] = drawn(n_tokens, config.n_token_types)
        with torch.inference_mode():
            expected = self.theirs(**other, output_hidden_states=True)
            logits, hidden = self.network(**mine), self.network.hidden(**mine)
        states = expected.get("decoder_hidden_states") or expected.get("hidden_states")
        if "pooler_output" in expected and expected["pooler_output"] is not None:
            self._close(logits, expected["pooler_output"])
        if "logits" in expected:
            self._close(*(x[keep] if x.shape[:2] == keep.shape else x for x in (logits, expected["logits"])))
        if states is not None:
            self._close(hidden[keep], states[-1][keep])

    @staticmethod
    def _close(x: Tensor, expected: Tensor) -> None:
        assert x.shape == expected.shape
        bound = 1e-5 * max(1.0, float(expected.abs().max()))
        assert float((x - expected).abs().max()) <= bound

    def assert_comes_back(self, out: Path) -> None:
        """Export again; check that every tensor is bit-equal and that every key of the configuration is equal."""
        export(self.folder, out)
        before, after = tensors(self.hf), tensors(out)
        assert before.keys() == after.keys()
        for name, x in before.items():
            assert torch.equal(x.float(), after[name]), name
        was, now = config_of(self.hf), config_of(out)
        assert now["architectures"] == was["architectures"] and now["model_type"] == was["model_type"]
        said_now = type(self.theirs.config)(**now).to_dict()
        for key, value in type(self.theirs.config)(**was).to_dict().items():
            if key not in ("transformers_version", "dtype", "torch_dtype", "initializer_range", "init_std"):
                assert said_now[key] == value, key


def imported(
    theirs: Any,
    place: Path,
    tokenizer: Tokenizer | None = None,
    after: Callable[[Any], None] = lambda theirs: None,
    **shards: Any,
) -> Both:
    """Save and import a random model of transformers; `after` may change it after the randomisation."""
    theirs = theirs.eval()
    randomise(theirs)
    with torch.no_grad():
        after(theirs)
    hf, folder = save(theirs, place / "hf", tokenizer, **shards), place / "ours"
    import_model(hf, folder, log=lambda text: None)
    return Both(theirs, glassformer.load(folder, device="cpu"), hf, folder)


def model_directory(config: ModelConfig, folder: Path, **changes: Any) -> Path:
    """Write a model directory with random weights, as after training; `changes` change its run."""
    tokenizer = tiny_tokenizer()
    ids = {f"{role}_id": getattr(tokenizer, f"{role}_id") for role in ("pad", "unk", "bos", "eos", "mask")}
    config = replace(config, vocab_size=VOCAB, **ids)
    run = Run(name=folder.name, model=config, **changes)
    labels = tuple(f"label{i}" for i in range(getattr(getattr(config, "head", None), "n_labels", 0)))
    torch.manual_seed(0)
    network = build_model(config)
    randomise(network)
    with files.new_folder(folder) as new:
        write_model_files(new, weights_of(network), Tokenizers(tokenizer), run, labels)
        Manifest.of(new, "model", 0, [path.name for path in new.iterdir()]).write(new)
    return folder
