"""`make test CHANGED=1` runs the tests that depend on changed files."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

import changed
from faults.children import done, forget

INSIDE = {
    "src/glassformer/apps/inspector/app.py": "tests/inspector/test_page.py",  # through a fixture
    "src/glassformer/apps/inspector/page/main.js": "tests/inspector/test_javascript.py",
    "src/glassformer/apps/cli/compare.py": "tests/cli/test_verbs.py",
    "src/glassformer/apps/cli/main.py": "tests/test_imports.py",  # in a process
    "src/glassformer/tasks/translation.py": "tests/training/test_run.py",  # a registry imports it by its name
    "src/glassformer/api.py": "tests/interop/test_trained_start.py",  # as `glassformer.train`
    "src/glassformer/nn/masks.py": "src/glassformer/nn/masks.py",  # its doctests
    "tests/runs.py": "tests/tasks/test_registry.py",
    "tests/conftest.py": "tests/nn/test_masks.py",
    "docs/pitfalls.md": "tests/test_documents.py",
}
"""Changed files, and a test file that depends on each."""
OUTSIDE = {
    "src/glassformer/apps/inspector/app.py": "tests/models/test_heads.py",
    "src/glassformer/training/loop.py": "tests/nn/test_attention.py",
    "src/glassformer/apps/interop/importing.py": "tests/training/test_run.py",
    "tests/inspector/conftest.py": "tests/cli/test_verbs.py",
    "docs/pitfalls.md": "tests/nn/test_masks.py",
}
"""Changed files, and a file of tests that does not depend on each."""


@pytest.mark.parametrize("name", INSIDE)
def test_a_changed_file_reaches_its_tests(name: str) -> None:
    test = changed.ROOT / INSIDE[name]
    assert (changed.ROOT / name).exists() and test in changed.all_tests()
    assert changed.touched({changed.ROOT / name}, [test]) == [test]


@pytest.mark.parametrize("name", OUTSIDE)
def test_tests_without_the_changed_file_are_left_out(name: str) -> None:
    test = changed.ROOT / OUTSIDE[name]
    assert (changed.ROOT / name).exists() and test in changed.all_tests()
    assert changed.touched({changed.ROOT / name}, [test]) == []


def test_the_imports_of_a_file_hold_all_modules_that_it_loads(tmp_path: Path) -> None:
    """A child of this process, which has torch already, imports glassformer again."""

    def work() -> None:
        forget("glassformer")
        for name in ("glassformer.training.run", "glassformer.tasks.task"):
            import_module(name)
        (tmp_path / "loaded").write_text("\n".join(sys.modules))

    assert done(work) == 0
    names = set((tmp_path / "loaded").read_text().splitlines())
    loaded = {path for name, path in changed.modules().items() if name in names and path.is_relative_to(changed.SOURCE)}
    start = {changed.PACKAGE / "training" / "run.py", changed.PACKAGE / "tasks" / "task.py"}
    packages = {path for path in loaded if path.name == "__init__.py"}
    assert set(changed.SOURCE.rglob("*.py")) <= set(changed.modules().values())
    assert len(loaded) > 60 and loaded - packages <= changed.closure(start)
