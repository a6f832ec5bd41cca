"""`python -m glassformer.interop.lm_eval …`: the harness's own command line, which then knows `--model glassformer`.

lm_eval finds models in its own tree only, by name; it reads no entry points. So the name is added first.
"""

import sys

from glassformer.errors import UserError, needs


def main() -> int:
    """All arguments are lm_eval's: `--model glassformer --model_args path=DIR --tasks …`."""
    try:
        with needs("the evaluation harness", "lm-eval"):
            from lm_eval.__main__ import cli_evaluate

            import glassformer.interop.lm_eval.harness  # noqa: F401 - it registers the model
        cli_evaluate()
    except UserError as error:
        print(f"glassformer: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
