"""Transformer models in readable PyTorch: train, use, inspect, import and export them.

    import glassformer

    model = glassformer.train("mybook.txt", max_steps=500).model  # later: glassformer.load("runs/mybook")
    print(model.generate("It was", temperature=0.8))

`train` a text, a recipe or a `Run`; `load` a model directory; `resume`, `export`, `import_model`, `ensemble`, `merge`.
`presets.PRESETS` lists the names that `build_model` accepts, and `recipes.names()` lists the names for `train`.

Names are imported on first use, so that `import glassformer` is fast.
"""

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer import inspection as inspection
    from glassformer import models as models
    from glassformer import nn as nn
    from glassformer import plot as plot
    from glassformer.api import compare as compare
    from glassformer.api import ensemble as ensemble
    from glassformer.api import load as load
    from glassformer.api import merge as merge
    from glassformer.api import plan as plan
    from glassformer.api import resume as resume
    from glassformer.api import train as train
    from glassformer.apps import course as course
    from glassformer.apps import doctor as doctor
    from glassformer.apps.inspector.server import inspect as inspect
    from glassformer.apps.interop.export import export as export
    from glassformer.apps.interop.importing import import_model as import_model
    from glassformer.apps.serving.run import serve as serve
    from glassformer.apps.sweep.run import sweep as sweep
    from glassformer.common.errors import UserError as UserError
    from glassformer.config import presets as presets
    from glassformer.config import recipes as recipes
    from glassformer.config.presets import preset as preset
    from glassformer.config.run import Run as Run
    from glassformer.config.transformer import Stack as Stack
    from glassformer.config.transformer import TransformerConfig as TransformerConfig
    from glassformer.inference.drafts import DraftCounts as DraftCounts
    from glassformer.model import Model as Model
    from glassformer.models.blocks import TransformerBlock as TransformerBlock
    from glassformer.models.build import build_model as build_model
    from glassformer.models.build import build_transformer as build_transformer
    from glassformer.tokenization.tokenizer import Tokenizer as Tokenizer
    from glassformer.training.metrics_log import follow as follow
    from glassformer.training.module_checkpoint import load_checkpoint as load_checkpoint
    from glassformer.training.module_checkpoint import save_checkpoint as save_checkpoint

__version__ = "0.1.0"

_NAMES = {
    "api": ("compare", "ensemble", "load", "merge", "plan", "resume", "train"),
    "apps.inspector.server": ("inspect",),
    "apps.interop.export": ("export",),
    "apps.interop.importing": ("import_model",),
    "apps.serving.run": ("serve",),
    "apps.sweep.run": ("sweep",),
    "common.errors": ("UserError",),
    "config.presets": ("preset",),
    "config.run": ("Run",),
    "config.transformer": ("Stack", "TransformerConfig"),
    "inference.drafts": ("DraftCounts",),
    "model": ("Model",),
    "models.blocks": ("TransformerBlock",),
    "models.build": ("build_model", "build_transformer"),
    "tokenization.tokenizer": ("Tokenizer",),
    "training.metrics_log": ("follow",),
    "training.module_checkpoint": ("load_checkpoint", "save_checkpoint"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}
_PLACES = ("apps.course", "apps.doctor", "config.presets", "config.recipes", "inspection", "models", "nn", "plot")
_MODULES = {place.rpartition(".")[2]: f"{__name__}.{place}" for place in _PLACES}

__all__ = sorted((*_HOMES, *_MODULES))

_SAVE = "save_checkpoint(module, optimizer, step, folder), or model.save(folder) for a Model"
_METHOD = "load(FOLDER), then the method of the model"
_BUILD = 'build_model("gpt2", n_layers=2, …), or another name of presets.PRESETS'
_OTHER_NAMES = {
    **dict.fromkeys(("from_pretrained", "from_hf", "load_hf"), "import_model(FOLDER or 'hf:OWNER/NAME', OUT)"),
    **dict.fromkeys(("HookedTransformer", "TransformerBridge"), "import_model(FOLDER, OUT); load(OUT).trace(text)"),
    **dict.fromkeys(("AutoModel", "load_model", "Pipeline", "pipeline"), "load(FOLDER)"),
    **dict.fromkeys(("set_seed", "seed", "manual_seed"), "train(…, seed=N) and model.generate(…, seed=N)"),
    **dict.fromkeys(("Trainer", "fit"), "train(…); for your own module, a loop with save_checkpoint"),
    **dict.fromkeys(("generate", "translate", "classify", "evaluate", "score"), _METHOD),
    **dict.fromkeys(("save", "save_state", "save_model"), _SAVE),
    "load_state": "load_checkpoint(folder, module, optimizer)",
    **dict.fromkeys(("cost", "estimate"), "plan(run, gpu)"),
    **dict.fromkeys(("trace", "logit_lens", "ablate", "plot_attention", "beam_search", "greedy_decode"), _METHOD),
    **dict.fromkeys(("count_parameters", "num_parameters", "n_params"), "network.n_parameters()"),
    **dict.fromkeys(("build_vocab", "get_stats", "merge_vocab"), "Tokenizer.train(texts, merges=…)"),
    **dict.fromkeys(("mask_tokens", "create_masked_lm"), "glassformer.objectives.noise"),
    "perplexity": "math.exp(loss), or model.score(text).perplexity",
    **dict.fromkeys(("AutoTokenizer", "BPE"), "Tokenizer"),
    **dict.fromkeys(("Llama", "Transformer", "GPTConfig"), _BUILD),
}
"""Names that users of other libraries try, and what to use instead."""
_FAMILIES = {"GPT": "gpt2", "BERT": "bert-base", "BART": "bart-base", "T5": "t5-small"}
"""Names of families, such as `GPT(n_layers=2, …)`, and the presets from which they start."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    from glassformer.common.errors import nearest_name, no_member

    if name in _FAMILIES:
        return partial(import_module(_HOMES["build_model"]).build_model, _FAMILIES[name])
    is_layer = name[:1].isupper() or any(part in name for part in ("attention", "mask", "norm", "position", "sinus"))
    if is_layer and find_spec(f"{__name__}.{name}") is None:  # other names load no torch
        nn = import_module(f"{__name__}.nn")
        if name in nn.__all__ or name in nn.OTHER_NAMES:
            return getattr(nn, name)
    raise no_member("glassformer", name, _OTHER_NAMES.get(name) or nearest_name(name, __all__, cutoff=0.75))


def __dir__() -> list[str]:
    """List the public names, for `dir`, `help` and tab completion."""
    return sorted({*globals(), *__all__})
