"""Export to one HTML file that runs the model in a browser, without a server and without a request to any host."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from glassformer.common import files
from glassformer.common.errors import needs
from glassformer.store.model_directory import StoredModel
from glassformer.tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    from glassformer.apps.inspector.web_file import Dtype


def write_web(stored: StoredModel, file: Path, dtype: "Dtype" = "float32") -> list[str]:
    """Write the page of a model; return the lines of the report.

    The page compares its logits with those of PyTorch when it opens. Raises `UserError` if the page cannot compute the
    model.
    """
    with needs("the page", "serve"):
        from glassformer.apps.inspector.web_file import checked_logits, require_web, web_file
    network, tokenizers = stored.network.cpu().eval(), stored.tokenizers
    device, step = torch.device("cpu"), stored.manifest.step
    model = TrainedModel(network, tokenizers, stored.generation, stored.run, device, stored.labels, step=step)
    require_web(model)
    exact = torch.tensor(checked_logits(model)["logits"])
    files.write_text(file, web_file(model, dtype))
    report = [f"{file.name}: {file.stat().st_size / 1e6:,.1f} MB, the weights in {dtype}"]
    if dtype != "float32":
        rounded = torch.tensor(checked_logits(model)["logits"])
        difference, largest = float((rounded - exact).abs().max()), float(exact.abs().max())
        report.append(f"the rounded weights change logits by {difference:.1e} (largest logit {largest:.1f})")
    report.append("the page compares its logits with PyTorch's when it opens, and makes no request to any host")
    return report
