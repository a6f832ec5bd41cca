"""One import gives every layer and function, each with a docstring."""

import inspect
import re
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import glassformer.models
import glassformer.nn

INNER = {
    "CellStep",
    "Stepper",
    "cache_dtype",
    "in_order",
    "reading_order",
    "run",
    "run_by_steps",
    "run_masked",
}
INNER |= {"added_to", "on_tensors", "scoped", "stacked", "tapped", "tapped_as_one", "where", "with_rows"}
INNER |= {"Probe", "activation_of", "allowed_pairs", "as_bool", "as_mask", "at_least_fp32", "described"}
INNER |= {
    "causal_as_well",
    "is_ids",
    "one_width",
    "real_tokens",
    "require_even",
    "require_rows",
    "vectors_of",
    "with_heads",
    "wrong_activations",
}
"""Parts of taps, caches, recurrent loops, fused layers, and checks of arguments, that a user does not need."""


def test_one_import_gives_every_public_name() -> None:
    folder = Path(glassformer.nn.__file__).parent
    for path in folder.glob("[a-z]*.py"):
        module = import_module(f"glassformer.nn.{path.stem}")
        for name, part in vars(module).items():
            is_own = getattr(part, "__module__", None) == module.__name__ and not name.startswith("_")
            if is_own and (inspect.isclass(part) or inspect.isfunction(part)) and name not in INNER:
                assert getattr(glassformer.nn, name) is part and name in glassformer.nn.__all__, name


@pytest.mark.parametrize("package", [glassformer.nn, glassformer.models])
def test_every_public_name_has_a_docstring(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        part = getattr(package, name)
        assert isinstance(part, dict) or (part.__doc__ and not part.__doc__.startswith(f"{name}(")), name


def needed(distribution: str, found: set[str]) -> set[str]:
    """Return a distribution and those that it needs, without extras."""
    if distribution in found:
        return found
    requirements = metadata.requires(distribution) or []
    found.add(distribution)
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        if "extra" not in marker:
            try:
                needed(re.split(r"[ <>=!~\[(]", name.strip())[0].lower(), found)
            except metadata.PackageNotFoundError:
                continue  # for another system
    return found


def test_the_layers_need_only_torch(tmp_path: Path) -> None:
    """In an environment with torch, what torch needs, and the package alone."""
    links = {"glassformer": Path(glassformer.__file__).parent}
    for distribution in needed("torch", set()):
        for file in metadata.files(distribution) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not top.endswith(".dist-info"):
                links[top] = Path(str(metadata.distribution(distribution).locate_file(top)))
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    program = (
        f"import sys\nsys.path.append({str(tmp_path)!r})\n"
        "from glassformer.nn import MultiHeadAttention, FeedForward, Mask, attention\n"
        "import torch\nx = torch.zeros(1, 3, 8)\n"
        "assert MultiHeadAttention(8, 2)(x, mask=torch.ones(3, 3)).shape == x.shape == FeedForward(8)(x).shape\n"
        "ours = {name for name in sys.modules if name.startswith('glassformer.')}\n"
        "rooms = {name.split('.')[1] for name in ours}\n"
        "assert rooms == {'nn', 'common'}, rooms\n"
        "try:\n    import tokenizers\nexcept ImportError:\n    pass\nelse:\n    raise AssertionError('not alone')\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, timeout=120)
