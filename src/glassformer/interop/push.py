"""Upload an exported folder to the hub of Hugging Face."""

from pathlib import Path

from glassformer import files
from glassformer.errors import UserError, first_line

PREFIX = "hf:"


def push(folder: str | Path, address: str, *, private: bool = False) -> str:
    """Upload an exported folder as one commit of the model repository `hf:OWNER/NAME`; return its address.

    The repository is created if it does not exist; `private` holds for a new one. Needs the token of
    `hf auth login`, or HF_TOKEN. Raises `UserError` for a folder without a model card, for another form of the address,
    and for errors of the hub and the network.
    """
    folder = files.as_path(folder, "folder")
    name = address.removeprefix(PREFIX)
    if name == address or name.count("/") != 1 or not all(name.split("/")):
        raise UserError(f"{address}: expected hf:OWNER/NAME, the name of a repository on the hub")
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}")
    export = f"run `glassformer export {folder} OUT --license LICENCE`, and push OUT"
    if not (folder / "README.md").exists():
        raise UserError(f"{folder} has no README.md (model card): {export}")
    try:
        import huggingface_hub
    except ImportError:
        raise UserError("push needs the package huggingface_hub: run pip install huggingface_hub") from None
    api = huggingface_hub.HfApi()
    try:
        is_exported = "glassformer" in (huggingface_hub.ModelCard.load(folder / "README.md").data.tags or ())
    except Exception:  # no readable model card: errors of YAML and of types have no common base
        is_exported = False
    if not is_exported:
        raise UserError(f"{folder} is not an export of glassformer (the tag in its README.md is missing): {export}")
    if hidden := sorted(folder.rglob(".*")):
        raise UserError(f"{hidden[0]} is not part of an export: remove it, or push another folder")
    try:
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a model of glassformer")
    except Exception as error:  # those of the hub, of its HTTP client and of the network have no common base
        raise UserError(f"cannot push to {address}: {first_line(error):.200}") from error
    return str(commit.repo_url)
