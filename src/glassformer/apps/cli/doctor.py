"""glassformer doctor DIR"""

from glassformer.apps.cli.arguments import Dir, Json
from glassformer.apps.cli.inputs_outputs import Stored
from glassformer.apps.cli.progress import bar, print_report


def main(directory: Dir, /, *, json_: Json = False, stored: Stored) -> int:
    """Check a model for common implementation errors; exit with 1 if a check fails.

    Examples:
        glassformer doctor runs/mybook
    """
    model = stored.model(directory)
    from glassformer.apps.doctor import check_model  # imports torch

    with bar("checking"):
        report = check_model(model)
    print_report(report, as_json=json_)
    return int(not report.ok)
