"""glassformer push DIR hf:OWNER/NAME"""

from pathlib import Path
from typing import Annotated


def main(
    folder: Annotated[Path, "DIR", "The folder of an export, with its model card."],
    address: Annotated[str, "hf:OWNER/NAME", "The repository, which is created if it does not exist."],
    /,
    *,
    private: bool = False,
) -> int:
    """Upload an exported model to the Hugging Face hub.

    Args:
        private: A new repository is private.

    Examples:
        glassformer push exported hf:me/mybook
    """
    from glassformer.interop.push import push

    print(f"pushed to {push(folder, address, private=private)}")
    return 0
