"""glassformer doctor DIR"""

from glassformer.cli.arguments import Dir, Json
from glassformer.cli.inputs_outputs import Stored
from glassformer.cli.progress import bar, print_report, reporting
from glassformer.errors import UserError


def main(directory: Dir | None = None, /, *, machine: bool = False, json_: Json = False, stored: Stored) -> int:
    """Check a model for common implementation errors; exit with 1 if a check fails.

    Args:
        machine: Instead of a model, measure the fast paths on this processor beside plain PyTorch.

    Examples:
        glassformer doctor runs/mybook
        glassformer doctor --machine
    """
    if machine == (directory is not None):
        raise UserError("doctor needs a model directory or --machine, and not both")
    if directory is None:
        from glassformer.doctor.machine import measure_machine  # imports torch

        with reporting() as reporter, reporter.phase("measuring") as progress:
            measured = measure_machine(progress)
        print_report(measured, as_json=json_)
        return 0
    model = stored.model(directory)
    from glassformer.doctor import check_model  # imports torch

    with bar("checking"):
        report = check_model(model)
    print_report(report, as_json=json_)
    return int(not report.ok)
