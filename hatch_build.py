"""The hook of hatch that copies the chapters of the course into the wheel, from `docs/course`."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Chapters(BuildHookInterface):
    """Add the chapters to a wheel, but not to an editable install.

    An editable install finds them in the checkout. Files of its own would be a folder `glassformer` without modules
    among the installed packages.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folder and its place in the wheel."""
        if version != "editable":
            build_data["force_include"]["docs/course"] = "glassformer/apps/course/chapters"
