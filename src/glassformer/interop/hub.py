"""Folders of the Hugging Face hub: fetched by its own library, when it is installed and there is a network."""

from pathlib import Path

from glassformer.errors import UserError, first_line

HUB = "hub:"
WANTED = ["*.json", "model*.safetensors", "*.spm", "vocab.txt", "merges.txt"]
"""Files that are read here; never code, never pickles, nor the same weights once more (`consolidated.safetensors`)."""


def local(source: str | Path) -> Path:
    """The folder of `hub:OWNER/NAME`, fetched if it is not in the library's own cache; any other source as it is."""
    if not str(source).startswith(HUB):
        return Path(source)
    name = str(source).removeprefix(HUB)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(
            f"{source} needs the package huggingface_hub: pip install huggingface_hub, or give a folder on this machine"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=WANTED))
    except (OSError, ValueError) as error:  # its own errors, and those of the network, are kinds of these
        raise UserError(f"{source} cannot be fetched, and is not in the cache: {first_line(error):.200}") from error
