"""Inner values of a model: named tensors, attention, logit lens, ablation, patching, beam trees.

`Model.trace`, `attention`, `logit_lens`, `hooks` and `ablate` call these functions; `glassformer.plot` draws them.
"""

from glassformer.inspection.ablation import Part, ablate, all_parts
from glassformer.inspection.attention_maps import Kind, alignment, attention_layers, default_layer
from glassformer.inspection.beam_tree import BeamTree, beam_tree
from glassformer.inspection.capture import STANDARD, Hook, Trace, capture, capture_tensors, model_hooks
from glassformer.inspection.effects import Effects, effects
from glassformer.inspection.head_scores import find_heads, head_scores, induction_ids, induction_ids_of, trace_scores
from glassformer.inspection.lens import LensCells, lens, lens_cells, logit_lens
from glassformer.inspection.measures import Measure, loss_of, measure_of
from glassformer.inspection.patching import Patching, patch_heads, patch_residual, patching_of

__all__ = [
    "STANDARD",
    "BeamTree",
    "Effects",
    "Hook",
    "Kind",
    "LensCells",
    "Measure",
    "Part",
    "Patching",
    "Trace",
    "ablate",
    "alignment",
    "all_parts",
    "attention_layers",
    "beam_tree",
    "capture",
    "capture_tensors",
    "default_layer",
    "effects",
    "find_heads",
    "head_scores",
    "induction_ids",
    "induction_ids_of",
    "lens",
    "lens_cells",
    "logit_lens",
    "loss_of",
    "measure_of",
    "model_hooks",
    "patch_heads",
    "patch_residual",
    "patching_of",
    "trace_scores",
]
