"""glassformer score DIR --source FILE --target FILE"""

import json
from pathlib import Path
from typing import Annotated

import tyro

from glassformer.cli.arguments import parse
from glassformer.cli.translate import cell, load_ensemble
from glassformer.data.pair_files import aligned_lines
from glassformer.errors import UserError


def main(argv: list[str]) -> int:
    return int(parse(score, argv, "score") or 0)


def score(
    directories: tyro.conf.Positional[tuple[Path, ...]],
    source: str | None = None,
    target: str | None = None,
    checkpoint: int | None = None,
    device: str = "auto",
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """The log probability of given targets: one line a pair, "nats TAB tokens TAB target", and the order is kept.

    An empty target is one too: the model may say at once that it ends.

    Args:
        directories: Model directories; several average their probabilities.
        source: A text file with one source a line.
        target: A text file whose line i is the target of line i.
        checkpoint: Use the checkpoint of this step.
        device: auto, cpu, cuda, cuda:N or mps.
        json_: Print one JSON object a pair: log_prob (nats), n_tokens (the end token included), source, target.
    """
    if source is None or target is None:
        side = "source" if source is None else "target"
        raise UserError(f"the {side} side is missing: give --{side} FILE")
    pairs = aligned_lines(Path(source), Path(target))
    model = load_ensemble(directories, checkpoint, device)
    sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
    for (one, other), (log_prob, n_tokens) in zip(pairs, model.score(sources, targets), strict=True):
        if json_:
            values = {"log_prob": log_prob, "n_tokens": n_tokens, "source": one, "target": other}
            print(json.dumps(values, ensure_ascii=False))
        else:
            print(f"{log_prob:.4f}\t{n_tokens}\t{cell(other)}")
    return 0
