"""Imports between layers have one direction, and `import glassformer` does not load torch."""

import ast
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import glassformer
from faults.children import done, forget
from glassformer.reporting import Outcome

ROOT = Path(glassformer.__file__).parent

LAYERS = [  # from the bottom up; a package imports its own layer's members only where they are named together
    {"errors", "formatting", "notebook"},
    {"files", "config"},
    {"figures"},
    {"seeds", "chat_messages"},
    {"tokenization"},
    {"kernels"},
    {"nn"},
    {"recipes", "data", "models"},
    {"store", "devices", "fitting"},
    {"inference"},
    {"objectives"},
    {"evaluation"},
    {"reporting"},
    {"tasks"},
    {"inspection"},
    {"distributed"},
    {"cost"},
    {"training"},
    {"loading"},
    {"inspector"},
    {"one_or_list"},
    {"model"},
    {"terminal"},
    {"api"},
    {"serving"},
    {"doctor"},
    {"plot"},
    {"interop"},
    {"course"},
    {"cli"},
    {"__main__"},
]
STRANGERS = [{"data", "models"}, {"files", "config"}, {"inspector", "course"}]


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


def layer(module: str) -> int:
    (place,) = [i for i, names in enumerate(LAYERS) if module.split(".")[0] in names]
    return place


NAMED = [name for name in MODULES if name]  # all except the package's __init__


def test_imports_go_to_lower_layers_only(subtests: pytest.Subtests) -> None:
    for name in NAMED:
        with subtests.test(name):
            top = name.split(".")[0]
            for imported, line in inner(MODULES[name]):
                other = imported.split(".")[0]
                if other == top:
                    continue
                assert layer(imported) <= layer(name), f"{name}:{line} imports {imported}, which is above it"
                assert {top, other} not in STRANGERS, f"{name}:{line} imports {imported}: they do not import each other"


def test_imports_have_no_cycle() -> None:
    """Also inside a package."""
    edges = {name: {imported for imported, _ in inner(MODULES[name])} - {name} for name in NAMED}
    done: set[str] = set()
    while ready := {name for name in NAMED if name not in done and edges[name] <= done}:
        done |= ready
    assert done == set(NAMED), f"in a cycle: {sorted(set(NAMED) - done)}"


@pytest.mark.parametrize(("folder", "allowed"), [("nn", {"nn", "kernels"}), ("kernels", {"kernels"})])
def test_neural_layers_need_torch_only(folder: str, allowed: set[str]) -> None:
    standard = sys.stdlib_module_names
    for name in NAMED:
        if name.split(".")[0] == folder:
            others = {imported.split(".")[0] for imported, _ in imports(MODULES[name])} - standard
            assert others <= {"torch", "glassformer"}, f"{name} imports {others}"
            assert {m.split(".")[0] for m, _ in inner(MODULES[name])} <= allowed


def test_the_lowest_layer_needs_the_standard_library_only(subtests: pytest.Subtests) -> None:
    for bottom in NAMED:
        if bottom.split(".")[0] in ("errors", "formatting", "files", "config"):
            with subtests.test(bottom):
                others = {imported.split(".")[0] for imported, _ in imports(MODULES[bottom])} - sys.stdlib_module_names
                assert others <= {"glassformer"}


def test_only_interop_imports_transformers() -> None:
    for name in NAMED:
        found = {imported.split(".")[0] for imported, _ in imports(MODULES[name])}
        assert "transformers" not in found or name.split(".")[0] == "interop", name


def test_only_distributed_imports_the_processes_of_torch() -> None:
    for name in NAMED:
        found = {imported for imported, _ in imports(MODULES[name])}
        of_processes = [
            imported for imported in found if imported.startswith(("torch.distributed", "torch.nn.parallel"))
        ]
        assert not of_processes or name.split(".")[0] == "distributed", f"{name} imports {of_processes}"


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
        parts = {name for name in sys.modules if name.startswith(("glassformer.training.", "glassformer.distributed"))}
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


def test_the_architecture_document_shows_this_order_and_every_folder() -> None:
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text("utf-8")
    [shown] = re.findall(r"^```\n(cli → .*?)```", page, re.MULTILINE | re.DOTALL)
    existing = {name.split(".")[0] for name in NAMED} - {"__main__"}
    layers = [layer & existing for layer in reversed(LAYERS) if layer & existing]
    assert [set(re.findall(r"\w+", group)) for group in shown.split("→")] == layers
    rows = "\n".join(re.findall(r"^\| `.*", page, re.MULTILINE))
    assert existing <= {re.split(r"[/.]", name)[0] for name in re.findall(r"`([\w/]+(?:\.py|/))`", rows)}
