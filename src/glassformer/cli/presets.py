"""glassformer presets [NAME]"""

from typing import Annotated

from glassformer.cli.arguments import fail
from glassformer.config.presets import PRESETS, preset
from glassformer.config.schema import to_dict, to_toml
from glassformer.cost.parameters import parameter_counts
from glassformer.terminal import show


def main(*names: Annotated[str, "[NAME]"]) -> int:
    """List the named model configurations and their sizes, or print one as TOML.

    Args:
        names: The configuration to print.
    """
    if len(names) > 1:
        fail("presets takes at most one name; give no name for the whole list")
    if names:
        print(to_toml(to_dict(preset(names[0]))), end="")
        return 0
    show(f"{'preset':<18}{'stacks':<17}{'layers':>7}{'d_model':>9}{'vocabulary':>12}{'parameters':>17}")
    for name, config in PRESETS.items():
        stacks = "+".join(s for s in ("encoder", "decoder") if getattr(config, s) is not None)
        size = f"{parameter_counts(config).total:,}" if config.vocab_size else "set by tokenizer"
        show(
            f"{name:<18}{stacks:<17}{config.head_stack.n_layers:>7}{config.d_model:>9}"
            f"{config.vocab_size or '-':>12}{size:>17}"
        )
    return 0
