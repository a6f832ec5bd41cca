"""The page as one HTML file that runs the model in the browser: weights, tokenizers and the modules of `network/`.

The modules compute what the server computes (`network/computed_source.js`). The page has no panels that need more.
"""

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.inspector import FOLDER, Example, Inspector
from glassformer.apps.inspector.panels.models import card
from glassformer.apps.inspector.panels.tensors import score_table
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig
from glassformer.config.schema import to_dict
from glassformer.config.transformer import TransformerConfig
from glassformer.inference.classify import Classifier, Tagger
from glassformer.inference.fill import MaskFiller, mask_token
from glassformer.inference.text import never_written
from glassformer.inspection.head_scores import MARGIN, NAMES, n_random, random_scores, random_trace
from glassformer.inspection.measures import predicts_next_token
from glassformer.inspection.texts import end_ids
from glassformer.models.build import Network
from glassformer.models.transformer import Transformer
from glassformer.nn.positions import Rotary
from glassformer.store.model_directory import weights_of
from glassformer.tasks.trained_model import TrainedModel
from glassformer.tokenization.chat_template import CHATML, CHATML_TOKENS
from glassformer.tokenization.tokenizer import Tokenizer

Dtype = Literal["float32", "bfloat16", "int8"]
MAX_PARAMETERS = 30_000_000
"""Largest number of parameters, for which a browser computes a token in a fraction of a second."""
N_CHECKED = 8
"""Number of tokens after which a page compares its logits with PyTorch's."""

_IMPORT = re.compile(r'(from|import) "(?:\./|\.\./(\w+)/)([\w-]+\.js)"')
_HEAD = re.compile(r'<link rel="stylesheet".*?>|<script type="module".*?</script>')

SETTINGS = """
encoder decoder n_layers n_heads n_kv_heads d_head d_ff window_pattern d_model d_embedding vocab_size
source_vocab_size n_token_types max_len source_max_len share_embeddings tie_output positions layout offset base
fraction scaling factor low_freq_factor high_freq_factor original_max_len beta_fast beta_slow n_buckets max_distance
norm norm_eps norm_weight norm_bias norm_order final_norm embedding_norm qk_norm activation gated_ff
fused_qkv qkv_bias attn_out_bias ff_bias attention_scale embedding_scale logit_scale token_dropout
embedding_dropout residual_dropout attention_dropout ff_dropout layer_dropout output_dropout head transform bias
n_labels pooling pooler mean std normalize max_tokens init residual init_range pad_id bos_id eos_id
unk_id mask_id decoder_start_id cell bidirectional reverse_source d_encoder d_decoder attention score d_attention
context_every_step deep_output input_feeding ends_at_base
"""
"""Names of the settings that the modules of `network/` support, with any value except `NOT_FOLLOWED`."""
NOT_FOLLOWED = ("qk_norm", "all")
KINDS = """
transformer recurrent sinusoidal learned rotary alibi relative none linear llama3 yarn tokens positions sequence
vectors normal xavier fan_in before after
"""
"""Kinds of settings that the modules of `network/` support."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """The page in the cell of a notebook. The browser computes the model, also if Python runs on another computer."""

    page: str = dataclasses.field(repr=False)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.page)}" style="width: 100%; height: 820px; border: 0"></iframe>'


def web_file(model: TrainedModel, dtype: Dtype = "float32", examples: Sequence[Example] = ()) -> str:
    """Return the page of a model, and round the matrices of the model to `dtype` (`stored_weights`).

    The page begins with the first of the `examples`, by default one of the model. Raises `UserError` if the modules
    cannot compute the model.
    """
    require_web(model)
    weights = stored_weights(model.network, dtype)
    inspector = Inspector(dataclasses.replace(model, folder=None), examples)
    data = json.dumps(web_model(inspector), ensure_ascii=False).replace("<", "\\u003c")  # no tag ends the script
    stored = base64.b64encode(safetensors.torch.save(weights)).decode()
    scripts = (
        f'<script type="application/json" id="web-model">{data}</script>\n'
        f'<script type="text/plain" id="weights">{stored}</script>'
    )
    return with_modules(FOLDER, ("page", "panels", "network"), "network/main.js", scripts)


def with_modules(folder: Path, parts: Sequence[str], begin: str, data: str) -> str:
    """Return the page with the modules of the folders `parts`; the module `begin` starts the page.

    Modules become `data:` addresses in an import map, because a page from a disk cannot import files. `data` has script
    elements that contain data, not code. The content security policy allows no request at all.
    """
    page = folder / "page"
    paths = sorted(path for part in parts for path in (folder / part).glob("*.js"))
    addresses = {f"{path.parent.name}/{path.name}": _address(_module(path)) for path in paths}
    import_map, first = json.dumps({"imports": addresses}), f'import "{begin}";'
    scripts = " ".join(f"'sha256-{_hash(code)}'" for code in (import_map, first))
    policy = f"default-src 'none'; script-src {scripts} data:; style-src 'unsafe-inline'; img-src data: blob:"
    head = (
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        f"<style>{(page / 'style.css').read_text('utf-8')}</style>\n"
        f'{data}\n<script type="importmap">{import_map}</script>\n<script type="module">{first}</script>'
    )
    html = (page / "index.html").read_text("utf-8")
    before, after = html[: _first(html)], _HEAD.sub("", html[_first(html) :])
    return before + head + after


def _module(path: Path) -> str:
    """Return a module of the page, with the names of the import map in its imports, such as `page/dom.js`."""

    def named(match: re.Match[str]) -> str:
        return f'{match[1]} "{match[2] or path.parent.name}/{match[3]}"'

    return _IMPORT.sub(named, path.read_text("utf-8"))


def _first(page: str) -> int:
    match = _HEAD.search(page)
    assert match is not None, "index.html has a style sheet and a module"
    return match.start()


def _address(code: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()


def _hash(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def require_web(model: TrainedModel) -> None:
    """Raise `UserError` if the modules of `network/` cannot compute a model: one sentence with the reason."""
    config, n_parameters = model.config, sum(x.numel() for x in model.network.parameters())
    if n_parameters > MAX_PARAMETERS:
        raise UserError(
            f"{model.name} has {n_parameters:,} parameters, and a page computes at most {MAX_PARAMETERS:,}: "
            "use `glassformer inspect`, which starts a server"
        )
    for name in unfollowed(config):
        raise UserError(f"model.{name} is set, and the page does not follow this setting: use `glassformer inspect`")
    if isinstance(config, TransformerConfig) and config.reads_text_twice:
        raise UserError(
            f"model.head is {config.head.kind}, and on an encoder and a decoder the page has only the head tokens"
        )
    if model.is_seq2seq and model.task.filler(model) is not None:
        raise UserError(f"{model.name} fills masks with an encoder and a decoder, and the page does not do this")
    for tokenizer in (model.tokenizer, model.source_tokenizer):
        if tokenizer.scheme is None:
            raise UserError(
                f"the tokenizer of {model.name} has rules that the page does not have: it runs glassformer's schemes, "
                "to which that of GPT-2 belongs"
            )


def unfollowed(settings: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted names of settings that `network/` does not support, unless they have their default value.

    >>> from glassformer.config.recurrent import RecurrentConfig
    >>> list(unfollowed(RecurrentConfig(vocab_size=9)))
    []
    """
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{path}{field.name}"
        is_known = field.name in SETTINGS.split() and getattr(value, "kind", "none") in KINDS.split()
        if (field.name, value) == NOT_FOLLOWED or (not is_known and value != field.default):
            yield name
        elif dataclasses.is_dataclass(value):
            yield from unfollowed(value, f"{name}.")


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers q of a weight (out, in) and the scales s of its rows: w ≈ s · q.

    s is the largest absolute weight of a row / 127 in bfloat16, and q the nearest integer to w / s.

    >>> quantize(torch.tensor([[127.0, -2.0]]))
    (tensor([[127,  -2]], dtype=torch.int8), tensor([1.], dtype=torch.bfloat16))
    """
    weight = weight.detach().float()
    scales = (weight.abs().amax(dim=1) / 127).clamp(min=1e-30).bfloat16()
    integers = (weight / scales[:, None].float()).round().clamp(-127, 127).to(torch.int8)
    return integers, scales


@torch.no_grad()
def stored_weights(network: Network, dtype: Dtype) -> dict[str, Tensor]:
    """Return the tensors of the file, fp32 vectors and matrices of `dtype`, and round the network's tensors to them.

    A matrix in int8 has one scale per row (`quantize`), NAME.scales. Untrained buffers, such as the angles of rotary
    positions, are also in the file.
    """
    stored: dict[str, Tensor] = {}
    for name, x in weights_of(network.float()).items():
        if x.dim() < 2 or dtype == "float32":
            stored[name] = x.contiguous()
        elif dtype == "bfloat16":
            stored[name] = x.bfloat16().contiguous()
            x.copy_(stored[name])
        else:
            stored[name], scales = quantize(x)
            stored[f"{name}.scales"] = scales.float()
            x.copy_(stored[name] * stored[f"{name}.scales"][:, None])
    for name, x in network.named_buffers():
        stored.setdefault(name, x.float().contiguous())
    for name, module in network.named_modules():
        if isinstance(module, Rotary):
            stored[f"{name}.attention_factor"] = torch.tensor([module.attention_factor])
    return stored


def web_model(inspector: Inspector) -> dict[str, Any]:
    """Return what the page needs beside the weights: `WebModel` of `network/computed_source.js`."""
    model = inspector.model_of(None)
    network, source = model.network, None
    if model.source_tokenizer is not model.tokenizer:
        source = vocabulary(model.source_tokenizer)
    random, facts = None, facts_of(inspector)
    if isinstance(network, Transformer):
        random = _ids(random_trace(model).inputs)
        facts["n_random"] = n_random(model)
        facts["random_scores"] = {kind: score_table(layers) for kind, layers in random_scores(model).items()}
    return {
        "facts": facts,
        "config": to_dict(model.config),
        "tied": tied_names(network),
        "rules": rules(model),
        "vocabularies": {"target": vocabulary(model.tokenizer), "source": source},
        "random": random,
        "check": checked_logits(model),
    }


def facts_of(inspector: Inspector) -> dict[str, Any]:
    """Return the facts that the answers contain: the card of the model without what needs a server, and more."""
    model = inspector.model_of(None)
    windows, outputs, config = {}, "none", model.config
    if isinstance(config, TransformerConfig):
        for name, stack in config.stacks.items():
            pattern = stack.window_pattern or (0,)
            windows[name] = [pattern[i % len(pattern)] for i in range(stack.n_layers)]
    if page_data.predicts_tokens(model):
        outputs = "tokens"
    elif model.is_regression:
        outputs = "number"
    elif isinstance(model.predictor, Classifier | Tagger):
        outputs = "labels" if isinstance(model.predictor, Classifier) else "tags"
    of_model = card(inspector) | {"has_template": reads_messages(model)}
    if not reads_messages(model):
        of_model["examples"] = [one for one in of_model["examples"] if "messages" not in one]
    return {
        "model": of_model,
        "outputs": outputs,
        "names": NAMES,
        "margin": MARGIN,
        "windows": windows,
        "random_scores": None,
        "n_random": None,
        "measure": measured(model),
    }


def reads_messages(model: TrainedModel) -> bool:
    """Return True for a model with the template ChatML of glassformer, which the page has in JavaScript."""
    return model.is_causal_lm and model.tokenizer.chat_template == CHATML


def measured(model: TrainedModel) -> str:
    """Return what an ablation compares: see `measures`, and `Facts` of `computed_run.js`."""
    predictor = model.predictor
    if predicts_next_token(model.config):
        return "loss"
    if page_data.predicts_tokens(model):
        return "tokens"
    if predictor is None or model.is_regression:
        return "change"
    return "each label" if model.is_multi_label else "labels"


def tied_names(network: Network) -> dict[str, str]:
    """Return the other names of tied weights, with the names under which the file has them."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(x), name) for name, x in network.state_dict(keep_vars=True).items()}
    return {name: stored for name, stored in names.items() if name != stored}


def rules(model: TrainedModel) -> dict[str, Any]:
    """Return the special tokens around texts, the ids never written, and the limits: `Rules` of `reading.js`."""
    # What is around a text, and its mask
    tokenizer, config, filler = model.tokenizer, model.config, model.task.filler(model)
    frames = tokenizer.frames
    before, after, mask, chatml = frames.text.before, frames.text.after, None, None
    if model.is_causal_lm:
        before, after = tuple(model.writer.before), ()
    if isinstance(filler, MaskFiller):
        mask = {"id": tokenizer.mask_id, "token": mask_token(tokenizer)}
    if reads_messages(model):
        chatml = dict(zip(("start", "end"), (tokenizer.vocab[token] for token in CHATML_TOKENS), strict=True))
    # Rules of all models; -1 stands for no token
    found: dict[str, Any] = {
        "before": before,
        "after": after,
        "source_before": model.source_tokenizer.frames.source.before,
        "source_after": model.source_tokenizer.frames.source.after,
        "target_before": frames.target.before,
        "is_pair": model.is_seq2seq,
        "start_id": -1,
        "end_id": -1,
        "never": never_written(tokenizer, config.vocab_size, but=end_ids(model)),
        "max_len": config.max_len,
        "source_max_len": config.encoder_max_len,
        "mask": mask,
        "chatml": chatml,
        "beam": 1,
        "max_new_tokens": config.max_len,
        "max_ratio": 0,
    }
    if model.is_seq2seq:
        search: BeamConfig = model.translator.defaults
        found |= {"start_id": model.translator.start_id, "end_id": model.translator.end_id, "beam": search.beam}
        found |= {"max_new_tokens": search.max_new_tokens, "max_ratio": search.max_ratio}
    return found


def vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokens by id and the merges as pairs of ids: `Vocabulary` of `tokenizer.js`."""
    ids, unknown = tokenizer.vocab, json.loads(tokenizer.to_json())["model"].get("unk_token")
    return {
        "scheme": tokenizer.scheme,
        "tokens": list(ids),
        "merges": [[ids[left], ids[right]] for left, right in tokenizer.merges],
        "special": [ids[token] for token in tokenizer.special_tokens],
        "unknown": None if unknown is None else ids[unknown],
    }


@torch.inference_mode()
def checked_logits(model: TrainedModel) -> dict[str, Any]:
    """Return random ids, and PyTorch's last row of logits for them, with which a page compares its own logits."""
    config, generator = model.config, torch.Generator().manual_seed(0)

    def drawn(n_ids: int, longest: int) -> Tensor:
        return torch.randint(n_ids, (1, min(N_CHECKED, longest)), generator=generator)

    inputs = {"token_ids": drawn(config.vocab_size, config.max_len)}
    if config.is_encoder_decoder:
        inputs["source_ids"] = drawn(config.encoder_vocab_size, config.encoder_max_len)
    logits = model.network.eval()(**inputs)
    return {**_ids(inputs), "logits": logits[0].reshape(-1, logits.shape[-1])[-1].tolist()}


def _ids(inputs: Mapping[str, Tensor]) -> dict[str, list[int]]:
    source = inputs["source_ids"][0].tolist() if "source_ids" in inputs else []
    return {"ids": inputs["token_ids"][0].tolist(), "source_ids": source}
