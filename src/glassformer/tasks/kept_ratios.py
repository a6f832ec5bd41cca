"""Log ratios of the reference of preferences, computed once and kept in the user's cache folder.

A file is named by a hash of all that decides its values: the weights of the reference, its configuration, the tokens,
and the settings of the computation. It has a hash of its values too, and a damaged file is computed and written again.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from glassformer import files
from glassformer.config.run import PreferenceConfig, PreferenceData, Run
from glassformer.config.schema import to_dict
from glassformer.data.batching import Example
from glassformer.errors import UserError
from glassformer.evaluation.division import ALONE, Division
from glassformer.store.tensors import read_tensors
from glassformer.tasks.preparation import user_cache
from glassformer.tasks.requirements import data_of

VERSION = 1
"""Part of each name; raise it when the same inputs get other values."""
RATIOS, DIGEST = "log_ratios", "sha256"


def kept_ratios(
    run: Run,
    examples: Sequence[Example],
    device: torch.device,
    compute: Callable[[], np.ndarray],
    division: Division = ALONE,
) -> np.ndarray:
    """Return the log ratios of the reference of a run, one per example: the kept ones, or those of `compute`.

    All processes of `division` call `compute` if one of them finds no kept values. Without `init.digest`, the reference
    has no name, so nothing is kept.
    """
    if run.init.digest is None:
        return compute()
    path = user_cache("references") / f"{_name(run, examples, device)}.safetensors"
    found = _read(path, len(examples))
    [n_without] = division.sum(found is None)
    if found is None or n_without:
        found = compute()
        files.write_bytes(path, save({RATIOS: torch.from_numpy(found), DIGEST: _digest(path, found)}))
    return found


def _name(run: Run, examples: Sequence[Example], device: torch.device) -> str:
    assert isinstance(run.objective, PreferenceConfig)
    settings: list[Any] = [VERSION, run.init.digest, to_dict(run.model), run.objective.loss, run.train.precision]
    settings += [data_of(run, PreferenceData).batch_tokens, device.type, torch.__version__]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for example in examples:
        for ids in (example.token_ids, example.document_ids, example.labels):
            assert ids is not None  # `PreferenceRows`
            digest.update(np.asarray(ids, dtype=np.int64).tobytes() + b"|")
    return digest.hexdigest()[:32]


def _digest(path: Path, ratios: np.ndarray) -> torch.Tensor:
    """Return the hash of a file's name and values."""
    digest = hashlib.sha256(path.stem.encode() + ratios.tobytes()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)


def _read(path: Path, n: int) -> np.ndarray | None:
    """Return the values of a file; None if it does not exist or is damaged."""
    if not path.exists():
        return None
    try:
        tensors = read_tensors(path)
    except UserError:
        return None
    ratios, digest = tensors.get(RATIOS), tensors.get(DIGEST)
    if ratios is None or digest is None or ratios.dtype != torch.float64 or ratios.shape != (n,):
        return None
    found: np.ndarray = ratios.numpy()
    if digest.tolist() != _digest(path, found).tolist():
        return None
    return found
