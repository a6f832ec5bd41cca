"""The teacher of a run (`[teacher]`): its weights, and the objective with which it teaches."""

from collections.abc import Sequence
from pathlib import Path

from glassformer.common.errors import UserError
from glassformer.config.run import Run
from glassformer.objectives.distillation import Distillation
from glassformer.objectives.loss import Objective, TokenObjective
from glassformer.store.model_directory import WEIGHTS, StoredModel, read_model
from glassformer.tokenization.tokenizer import Tokenizers
from glassformer.training.checks import other_tokens


def read_teacher(run: Run) -> StoredModel | None:
    """Read the teacher of a run, if it has one; raise `UserError` for other weights than those that the run records."""
    if run.teacher is None:
        return None
    folder = Path(run.teacher.path or "")  # `checks.as_new`
    try:
        teacher = read_model(folder)
    except UserError as error:
        raise UserError(f"the teacher of the run: {error}") from error
    if teacher.manifest.entries[WEIGHTS][1] != run.teacher.digest:
        raise UserError(
            f"the weights of the teacher {folder} are not those with which the run began (teacher.digest): restore "
            "them, or start a new run"
        )
    return teacher


def taught(
    objective: Objective, run: Run, teacher: StoredModel, tokenizers: Tokenizers, labels: Sequence[str]
) -> Distillation:
    """Return the objective of the steps of a run with a teacher, whose network is on the CPU.

    Raises `UserError` for a teacher of other tokens or labels, and for a loss that is not a cross-entropy.
    """
    assert run.teacher is not None
    if not isinstance(objective, TokenObjective):
        raise UserError(
            f"the loss of objective.kind {run.objective.kind} on this data is not a cross-entropy over tokens or "
            "classes, which a teacher needs: leave out [teacher]"
        )
    if _fingerprints(tokenizers) != _fingerprints(teacher.tokenizers):
        raise other_tokens(run.teacher.path or "")
    if teacher.labels != tuple(labels):
        raise UserError(
            f"the teacher {run.teacher.path} has the labels {', '.join(teacher.labels)}, and the run "
            f"{', '.join(labels)}: train both on the same labels"
        )
    network = teacher.network.requires_grad_(False)
    return Distillation(objective, network, run.teacher.weight, run.teacher.temperature)


def _fingerprints(tokenizers: Tokenizers) -> list[str]:
    both = (tokenizers.target, tokenizers.separate_source)
    return [tokenizer.fingerprint for tokenizer in both if tokenizer is not None]
