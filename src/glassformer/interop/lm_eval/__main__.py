"""`python -m glassformer.interop.lm_eval …`: the command line of the harness, with `--model glassformer` registered.

lm_eval finds models only in its own package, by name, and reads no entry points. So this module registers the name.
"""

import sys

from glassformer.errors import UserError, needs


def main() -> int:
    """Run lm_eval with its own arguments: `--model glassformer --model_args path=DIR --tasks …`."""
    try:
        with needs("the evaluation harness", "lm-eval"):
            from lm_eval.__main__ import cli_evaluate

            import glassformer.interop.lm_eval.harness  # noqa: F401 - registers the model
        cli_evaluate()
    except UserError as error:
        print(f"glassformer: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
