"""Inner values of a model: named tensors, attention, logit lens, ablation, patching, beam trees.

`Model.trace`, `attention`, `logit_lens`, `hooks` and `ablate` call these functions; `glassformer.plot` draws them.
The files here import from `tasks` and from the packages that `tasks` imports. Begin with `capture.py`: a `Trace` holds
the named tensors.
"""

from glassformer.inspection.ablation import Effects, Part, ablate, all_parts, effects, effects_of_texts, mean_effects
from glassformer.inspection.atlas import Atlas, AtlasHead, atlas
from glassformer.inspection.attention_maps import Kind, alignment, attention_layers, default_layer
from glassformer.inspection.attribution import Attribution, Term, attribute, logit_attribution
from glassformer.inspection.beam_tree import BeamTree, beam_tree
from glassformer.inspection.capture import STANDARD, Hook, Trace, capture, capture_tensors, model_hooks
from glassformer.inspection.head_scores import find_heads, head_scores, induction_ids, induction_ids_of, trace_scores
from glassformer.inspection.input_effects import InputEffects, input_effects
from glassformer.inspection.lens import LensCells, lens, lens_cells, logit_lens
from glassformer.inspection.measures import Beside, Measure, Spread, logit_measure, loss_of, measure_of
from glassformer.inspection.patching import (
    Patching,
    Restored,
    estimate,
    head_places,
    likely_heads,
    mean_restored,
    patch_heads,
    patch_pairs,
    patch_residual,
    patching_of,
    rank_correlation,
    residual_places,
)
from glassformer.inspection.strongest import Strongest, strongest

__all__ = [
    "STANDARD",
    "Atlas",
    "AtlasHead",
    "Attribution",
    "BeamTree",
    "Beside",
    "Effects",
    "Hook",
    "InputEffects",
    "Kind",
    "LensCells",
    "Measure",
    "Part",
    "Patching",
    "Restored",
    "Spread",
    "Strongest",
    "Term",
    "Trace",
    "ablate",
    "alignment",
    "all_parts",
    "atlas",
    "attention_layers",
    "attribute",
    "beam_tree",
    "capture",
    "capture_tensors",
    "default_layer",
    "effects",
    "effects_of_texts",
    "estimate",
    "find_heads",
    "head_places",
    "head_scores",
    "induction_ids",
    "induction_ids_of",
    "input_effects",
    "lens",
    "lens_cells",
    "likely_heads",
    "logit_attribution",
    "logit_lens",
    "logit_measure",
    "loss_of",
    "mean_effects",
    "mean_restored",
    "measure_of",
    "model_hooks",
    "patch_heads",
    "patch_pairs",
    "patch_residual",
    "patching_of",
    "rank_correlation",
    "residual_places",
    "strongest",
    "trace_scores",
]
