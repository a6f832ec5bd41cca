"""Compare two versions of the source: the same recipes, seeds and data give the same losses and weights to the bit.

    python benchmarks/same_losses.py OLD/src NEW/src [--steps 20]

Each recipe is trained in a separate process per source on PYTHONPATH. The losses of all steps are compared
as the text of `metrics.jsonl`, the last weights byte by byte. The exit code is 1 when anything differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPES = {
    "python-docs": [],
    "copy-task": [],
    "reverse-luong": [],
    "mlm-python-docs": [],
    "docstrings": [],
    "t5-span-small": ["--train.batch-size", "8"],
}
"""Recipes on built-in data: a text in windows, examples, pairs with attention, masks, labels and spans."""
PROGRAM = """
import sys
from glassformer import api, recipes
from glassformer.{settings} import apply_flags
name, out, *flags = sys.argv[1:]
run = apply_flags(recipes.load(name), dict(zip(flags[::2], flags[1::2])))
api.train(run, out)
"""


def trained(source: Path, name: str, flags: list[str], folder: Path, cache: Path) -> tuple[list[str], bytes]:
    """Return the losses of a recipe's steps and evaluations as text, and the bytes of its weights."""
    places = ("config.changes", "config.schema", "settings")
    settings = next(place for place in places if (source / "glassformer" / f"{place.replace('.', '/')}.py").exists())
    program = PROGRAM.format(settings=settings)
    given = [flag.removeprefix("--").replace("-", "_") if flag.startswith("--") else flag for flag in flags]
    environment = {**os.environ, "PYTHONPATH": str(source), "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, name, str(folder), *given], env=environment, check=True
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = []
    for line in lines:
        values = [
            value
            for key, value in line.items()
            if value is not None and (key.endswith("loss") or key == "gradient_norm")
        ]
        losses.append(" ".join([str(line["step"]), *map(repr, sorted(values))]))
    return losses, (folder / "model.safetensors").read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    arguments = parser.parse_args()
    n = str(arguments.steps)
    times = ["--train.max-steps", n, "--train.eval-every", n, "--train.log-every", "1", "--train.select", "last"]
    n_wrong = 0
    for name in arguments.recipes:
        with tempfile.TemporaryDirectory() as folder:
            found = [
                trained(source, name, [*times, *RECIPES[name]], Path(folder) / side, Path(folder) / f"{side}-cache")
                for side, source in (("old", arguments.old.absolute()), ("new", arguments.new.absolute()))
            ]
        (old_losses, old_weights), (new_losses, new_weights) = found
        same = old_losses == new_losses, old_weights == new_weights
        n_wrong += same != (True, True)
        last = old_losses[-1].split()[1]
        words = ["equal" if one else "DIFFERENT" for one in same]
        print(
            f"{name:<18} {len(old_losses)} lines of losses {words[0]}, weights {words[1]}; last loss {last}", flush=True
        )
    return n_wrong > 0


if __name__ == "__main__":
    sys.exit(main())
