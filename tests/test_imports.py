"""Imports between layers have one direction, and `import glassformer` does not load torch."""

import ast
import os
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import glassformer
from faults.children import done, forget
from glassformer.tasks.reporting import Outcome

ROOT = Path(glassformer.__file__).parent

FLOORS = [  # from the bottom up: a room imports from lower floors only
    {"common"},
    {"nn", "config", "tokenization", "apps.course"},
    {"data", "models"},
    {"objectives", "inference", "store"},
    {"evaluation", "trial"},
    {"tasks"},
    {"cost", "inspection"},
    {"training", "model"},
    {"loading", "plot"},
    {"api", "apps.inspector"},
    {"apps.interop", "apps.serving", "apps.doctor", "apps.sweep"},
    {"apps.cli"},
]
"""The rooms: folders of the core, the files beside them, and the programs in `apps/`."""
NO_ROOMS = ("__main__", "apps")


def modules() -> dict[str, Path]:
    """Return every module by its dotted name inside the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Return all imports of a file, as absolute dotted names with the line."""
    return list(imported(ast.parse(path.read_text("utf-8")), path))


def imported(tree: ast.Module, path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            if path.parent.name == "mytransformer" and node.level == 1:
                continue  # a package of its own, which readers write
            assert node.level == 0, f"{path}:{node.lineno} imports with a relative name"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_module":
            yield from ((name.value, node.lineno) for name in node.args[:1] if isinstance(name, ast.Constant))


def inner(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules of glassformer that a file imports."""
    for name, line in imports(path):
        if name.split(".")[0] == "glassformer":
            dotted = name.removeprefix("glassformer.")
            while dotted not in MODULES:
                assert "." in dotted, f"{path}:{line} imports {name} from the package's own __init__"
                dotted = dotted.rsplit(".", 1)[0]
            yield dotted, line


def room(module: str) -> str:
    """Return the room of a module: its first name, or the first two of a program in `apps/`."""
    return ".".join(module.split(".")[: 2 if module.startswith("apps.") else 1])


def floor(module: str) -> int:
    [place] = [i for i, rooms in enumerate(FLOORS) if room(module) in rooms]
    return place


NAMED = [name for name in MODULES if name and name not in NO_ROOMS]


def test_imports_go_to_lower_floors_only(subtests: pytest.Subtests) -> None:
    """So the core imports no program of `apps/`, and no room imports one of its own floor."""
    for name in NAMED:
        with subtests.test(name):
            for imported, line in inner(MODULES[name]):
                if room(imported) != room(name):
                    assert floor(imported) < floor(name), f"{name}:{line} imports {imported}, which is not below it"
                assert name.startswith("apps.") or not imported.startswith("apps"), f"{name}:{line} needs a program"


def test_a_run_and_its_use_need_no_program(tmp_path: Path) -> None:
    """Train, load and use a model in a copy of the package without `apps/`."""
    shutil.copytree(ROOT, tmp_path / "glassformer", ignore=shutil.ignore_patterns("apps", "__pycache__"))
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 200)
    program = (
        "import importlib, pkgutil, glassformer\n"
        "assert not importlib.util.find_spec('glassformer.apps')\n"
        "names = [found.name for found in pkgutil.walk_packages(glassformer.__path__, 'glassformer.')]\n"
        "[importlib.import_module(name) for name in names if not name.endswith(('__main__', '.plot'))]\n"
        f"small = dict(out={str(tmp_path / 'run')!r}, max_steps=2, eval_every=2, vocab_size=270, device='cpu')\n"
        f"run = glassformer.train({str(text)!r}, **small)\n"
        "model = glassformer.load(run.folder, device='cpu')\n"
        "assert model.generate('the', max_new_tokens=3) and model.evaluate() and model.trace('the cat')\n"
        "try: model.inspect('the')\n"
        "except glassformer.UserError as error: print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and "the inspector" in ran.stdout, ran.stderr


def test_imports_have_no_cycle() -> None:
    """Also inside a package."""
    edges = {name: {imported for imported, _ in inner(MODULES[name])} - {name} for name in NAMED}
    done: set[str] = set()
    while ready := {name for name in NAMED if name not in done and edges[name] <= done}:
        done |= ready
    assert done == set(NAMED), f"in a cycle: {sorted(set(NAMED) - done)}"


@pytest.mark.parametrize(
    ("folder", "below"),
    [
        ("nn", ("nn.", "common.arguments.", "common.errors.", "common.files.")),
        ("nn.kernels", ("common.files.",)),  # to keep what was measured
    ],
)
def test_neural_layers_need_torch_only(folder: str, below: tuple[str, ...]) -> None:
    standard = sys.stdlib_module_names
    for name in NAMED:
        if f"{name}.".startswith(f"{folder}."):
            others = {imported.split(".")[0] for imported, _ in imports(MODULES[name])} - standard
            assert others <= {"torch", "glassformer"}, f"{name} imports {others}"
            assert all(f"{m}.".startswith((f"{folder}.", *below)) for m, _ in inner(MODULES[name])), name


def test_the_lowest_layer_needs_the_standard_library_only(subtests: pytest.Subtests) -> None:
    for bottom in NAMED:
        if bottom.startswith(("common.arguments", "common.errors", "common.formatting", "common.files", "config.")):
            with subtests.test(bottom):
                others = {imported.split(".")[0] for imported, _ in imports(MODULES[bottom])} - sys.stdlib_module_names
                assert others <= {"glassformer"}


def test_only_interop_imports_transformers() -> None:
    for name in NAMED:
        found = {imported.split(".")[0] for imported, _ in imports(MODULES[name])}
        assert "transformers" not in found or room(name) == "apps.interop", name


def test_only_distributed_imports_the_processes_of_torch() -> None:
    for name in NAMED:
        found = {imported for imported, _ in imports(MODULES[name])}
        of_processes = [
            imported for imported in found if imported.startswith(("torch.distributed", "torch.nn.parallel"))
        ]
        assert not of_processes or name.startswith("training.distributed"), f"{name} imports {of_processes}"


def loaded_by(program: str) -> set[str]:
    """Return the modules that are loaded after a program has run in a separate process."""
    program += "\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], check=True, timeout=120, capture_output=True, text=True)
    return set(ran.stdout.split())


def test_the_interface_loads_modules_at_first_use() -> None:
    loaded = loaded_by("import glassformer.api")
    ours = {name for name in loaded if name.split(".")[0] == "glassformer"}
    assert len(ours) <= 62 and "torch" not in loaded, sorted(ours)


def test_loading_a_model_loads_no_optimizer_and_no_processes(trained: Outcome) -> None:
    """In a child of this process, which has torch already and imports glassformer again."""

    def work() -> None:
        forget("glassformer")
        import_module("glassformer.api").load(str(trained.folder), device="cpu")
        parts = {name for name in sys.modules if name.startswith("glassformer.training.")}
        assert not [name for name in parts if "optimizers" in name or "step" in name or "distributed" in name]

    assert done(work) == 0


def test_every_public_name_exists_and_the_import_loads_no_torch() -> None:
    """`tests/cli/test_imports.py` has the verbs that load no torch."""
    program = (
        "import sys, glassformer\n"
        "assert not {'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules), 'import glassformer is not free'\n"
        "from glassformer import UserError, TransformerConfig, presets, recipes\n"
    )
    assert "torch" not in loaded_by(program), "configurations need no torch"
    for name in glassformer.__all__:
        assert glassformer.__getattr__(name) is getattr(glassformer, name)
    assert set(glassformer.__all__) >= {"load", "Tokenizer", "build_model", "train", "doctor"}
    with pytest.raises(AttributeError, match="has no attribute 'lode': use load"):
        glassformer.lode  # noqa: B018


def test_dir_and_help_show_the_public_names() -> None:
    assert set(glassformer.__all__) <= set(dir(glassformer))
    shown = pydoc.plain(pydoc.render_doc(glassformer))
    missing = [name for name in glassformer.__all__ if name not in shown]
    assert not missing


def test_the_picture_of_the_rooms_is_current_and_every_room_has_a_paragraph() -> None:
    docs = Path(__file__).parents[1] / "docs"
    spec = spec_from_file_location("house", docs / "house.py")
    assert spec is not None and spec.loader is not None
    house = module_from_spec(spec)
    spec.loader.exec_module(house)
    assert [set(rooms) for rooms in house.floors()] == FLOORS
    assert house.PICTURE.read_text("utf-8") == house.draw(), "run: python docs/house.py"
    page = (docs / "architecture.md").read_text("utf-8")
    named = {name.strip("/").removesuffix(".py").replace("/", ".") for name in re.findall(r"\*\*`([\w/.]+)`\*\*", page)}
    assert set.union(*FLOORS) <= named


@pytest.mark.parametrize("room", sorted(set.union(*FLOORS) | {"apps"}))
def test_a_folder_states_its_contents_and_a_file_to_begin_with(room: str) -> None:
    path = ROOT / room.replace(".", "/") / "__init__.py"
    if path.exists():
        told = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        assert room == "apps" or ("Begin with `" in told and (ROOT / room.replace(".", "/") / begin(told)).exists())


def begin(told: str) -> str:
    return re.findall(r"Begin with `([\w/.]+)`", told)[0]
