"""The material of a run, by the kind of its data."""

from collections.abc import Callable

from glassformer.config.run import LabelData, PairData, Run, TextData, require_objective
from glassformer.training.data_paths import paths_of
from glassformer.training.label_task import LabelMaterial
from glassformer.training.material import Material
from glassformer.training.pair_task import PairMaterial
from glassformer.training.text_task import TextMaterial


def material_of(run: Run) -> Material:
    """The data of a run, by its kind; `UserError` where nothing is learned from it."""
    require_objective(run)
    paths_of(run.data)  # a name that cannot be written down is refused
    kinds: dict[str, Callable[[Run], Material]] = {
        TextData.kind: TextMaterial,
        PairData.kind: PairMaterial,
        LabelData.kind: LabelMaterial,
    }
    return kinds[run.data.kind](run)
