"""glassformer checkpoint list|verify|prune DIR"""

from pathlib import Path
from typing import Any

from glassformer.apps.cli.arguments import Dir, Group
from glassformer.apps.cli.progress import err, print_json
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.store import checkpoint
from glassformer.store.lock import locked
from glassformer.store.manifest import Manifest


def list_(folder: Dir, /, *, json_: bool = False) -> int:
    """List the checkpoints of a run.

    Args:
        folder: The run folder.
        json_: Print JSON.

    Examples:
        glassformer checkpoint list runs/mybook
    """
    try:
        model_step = Manifest.read(folder).step
    except UserError:
        model_step = None
    # Facts of each checkpoint
    rows: list[dict[str, Any]] = []
    steps = _steps(folder)
    from glassformer.training.trainer_state import read_progress  # imports torch

    for step in steps:
        path = checkpoint.path_of(folder, step)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        try:
            loss = read_progress(path).valid.get("loss")
        except UserError as error:
            err(str(error))
            loss = None
        rows.append({"step": step, "bytes": size, "valid_loss": loss, "is_model": step == model_step})
    if json_:
        print_json(rows)
        return 0
    # The table
    print(f"{'step':>8} {'MB':>9} {'valid loss':>11}")
    for row in rows:
        shown = "-" if row["valid_loss"] is None else f"{row['valid_loss']:.4f}"
        line = f"{row['step']:>8} {row['bytes'] / 1e6:>9.1f} {shown:>11}"
        if row["is_model"]:
            line += f"  the model in {folder}"
        print(line)
    return 0


def verify(folder: Dir, /) -> int:
    """Hash every file of a run's model and checkpoints, or of a model directory. Exit with 1 if a file is damaged.

    Args:
        folder: The run folder, or a model directory.

    Examples:
        glassformer checkpoint verify runs/mybook
    """
    if not folder.is_dir():
        raise UserError(f"no such run: {folder}")
    places = [folder, *(checkpoint.path_of(folder, step) for step in checkpoint.steps(folder))]
    n_damaged = 0
    for place in places:
        try:
            manifest = Manifest.read(place)
            manifest.verify(place)
            print(f"{place}  intact: {len(manifest.entries)} files of step {manifest.step}")
        except UserError as error:
            n_damaged += 1
            print(f"{place}  {error}")
    return int(n_damaged > 0)


def prune(folder: Dir, /, *, keep: int = 1) -> int:
    """Delete all checkpoints except the newest and the one that became the model of the run folder.

    The newest checkpoint and the model are verified first. The command fails while the run is training.

    Args:
        folder: The run folder.
        keep: Number of newest checkpoints to keep.

    Examples:
        glassformer checkpoint prune runs/mybook --keep 2
    """
    if keep < 1:
        raise UserError(f"--keep: expected at least 1, got {keep}")
    steps = _steps(folder)
    with locked(folder), files.writing(folder):
        from glassformer.training.trainer_state import read_progress  # imports torch

        checkpoint.clean(folder)
        manifest = Manifest.read(folder)
        manifest.verify(folder)
        best = read_progress(checkpoint.path_of(folder, steps[-1])).best_step
        checkpoint.prune(folder, steps[-1], keep, {manifest.step, best})
    left = checkpoint.steps(folder)
    print(f"deleted {len(steps) - len(left)} checkpoints; kept those of steps {', '.join(map(str, left))}")
    return 0


def _steps(folder: Path) -> list[int]:
    steps = checkpoint.steps(folder)
    if not steps:
        if not folder.is_dir():
            raise UserError(f"no such run: {folder}")
        raise UserError(f"{folder} has no checkpoints")
    return steps


main = Group("List, verify or prune the checkpoints of a run.", (list_, verify, prune))
