"""Collect the tests in little time, because every process of a run collects all of them."""

import gc
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

LARGE = {
    *("PIL", "accelerate", "aiohttp", "ctranslate2", "datasets", "gguf", "jsonschema", "jupytext"),
    *("huggingface_hub", "lm_eval", "matplotlib", "nbformat", "onnx", "onnxruntime", "onnxscript", "openai", "pandas"),
    *("playwright", "pyarrow", "sacrebleu", "schemathesis", "scipy", "sentencepiece", "sklearn", "transformers", "trl"),
    *("torch._dynamo", "torch._inductor", "torch.distributed.checkpoint", "torch.onnx", "xllamacpp"),
}
"""Libraries that a test file imports in its tests, or at its top with `late`."""


def has_doctests(path: Path) -> bool:
    return b">>>" in path.read_bytes()


class Collecting:
    """Leave out files without doctests as doctests, and refuse a file that imports a large library."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Look for no garbage: each search among the many objects takes 0.4 s, and finds nothing."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.freeze()  # also at the end of the process
            gc.enable()

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        return [found for found in (yield) if not isinstance(found, DoctestModule) or has_doctests(file_path)]

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        before = LARGE & sys.modules.keys()
        report = yield
        if imported := sorted((LARGE & sys.modules.keys()) - before):
            report.outcome, report.result = "failed", []
            report.longrepr = f"{collector.nodeid} imports {', '.join(imported)}: import it in a test, or with `late`"
        return report
