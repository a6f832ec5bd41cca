"""`benchmarks/kernels.py` measures every fast path."""

from dataclasses import replace

import pytest

from benchmark_files import load
from glassformer.nn.kernels import processor


@pytest.mark.parametrize("gains", ["onednn", "bf16"])
def test_every_fast_path_is_measured(
    gains: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = load("kernels")
    here = replace(processor.this, known=processor.FIXED[gains])
    monkeypatch.setattr(processor, "this", here)
    for name, size in (("ROUNDS", 1), ("SECONDS", 0.0), ("N_LAYERS", 1), ("WIDTH", 16), ("OUT", 16)):
        monkeypatch.setattr(kernels, name, size)
    monkeypatch.setattr(kernels, "VOCABULARY", 64)
    monkeypatch.setattr(kernels, "ATTENDED", 1024)
    kernels.main()
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith(str(here)) and len(rows) == (15 if gains == "bf16" else 6)
    assert processor.this is here
