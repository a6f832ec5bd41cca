"""glassformer average DIR… --out DIR"""

from pathlib import Path

from glassformer.cli.arguments import Dirs
from glassformer.errors import UserError


def main(*directories: Dirs, out: Path, last: int = 0) -> int:
    """The mean of the weights of several models, as a new model directory.

    Args:
        directories: Model directories or checkpoints of one configuration; or one run, whose checkpoints are meant.
        out: The new model directory.
        last: Of a run's checkpoints, only the newest so many; 0 = all that were kept, the best of them too.
    """
    from glassformer import files
    from glassformer.store import checkpoint
    from glassformer.store.model_directory import own_paths
    from glassformer.training.averaging import average_directories

    if last < 0:
        raise UserError(f"--last is {last} and must not be negative")
    if not directories:
        raise UserError("average needs model directories, or a run with checkpoints")
    folders = list(directories)
    steps = checkpoint.steps(folders[0]) if len(folders) == 1 else []
    if steps:
        folders = [checkpoint.path_of(folders[0], step) for step in steps[-last:]]
    elif last > 0:
        raise UserError("--last counts the checkpoints of one run: give its folder alone")
    if len(folders) < 2:
        raise UserError(f"there is only {folders[0]}, and a mean needs at least two models")
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"no such model directory: {folder}")
    files.require_new_folder(out, [path for folder in (*directories, *folders) for path in own_paths(folder)])
    average_directories(folders, out)
    print(f"{out} holds the mean of {len(folders)} models: {', '.join(folder.name for folder in folders)}")
    return 0
