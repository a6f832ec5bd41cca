"""glassformer average DIR… --out DIR"""

from pathlib import Path

from glassformer.apps.cli.arguments import Dirs
from glassformer.common.errors import UserError


def main(*directories: Dirs, out: Path, last: int = 0) -> int:
    """Average the weights of several models into a new model directory.

    Args:
        directories: Model directories or checkpoints of one configuration; or one run folder, for its checkpoints.
        out: The new model directory.
        last: Number of a run's newest checkpoints to average; 0 = all kept checkpoints, including the best.

    Examples:
        glassformer average runs/en-de --last 5 --out averaged
    """
    from glassformer.common import files
    from glassformer.store import checkpoint
    from glassformer.store.model_directory import own_paths

    if last < 0:
        raise UserError(f"--last: expected at least 0, got {last}")
    if not directories:
        raise UserError("average needs at least two model directories, or one run folder with checkpoints")
    folders = list(directories)
    if len(folders) == 1 and (steps := checkpoint.steps(folders[0])):
        folders = [checkpoint.path_of(folders[0], step) for step in steps[-last:]]
    elif last > 0:
        raise UserError("--last selects checkpoints of one run; give only the run folder")
    if len(folders) < 2:
        raise UserError(f"average needs at least two models, got only {folders[0]}")
    for folder in folders:
        checkpoint.find(folder)
    files.require_new_folder(out, [path for folder in (*directories, *folders) for path in own_paths(folder)])
    from glassformer.training.averaging import average_directories  # imports torch

    average_directories(folders, out)
    print(f"{out}: mean of {len(folders)} models: {', '.join(folder.name for folder in folders)}")
    return 0
