"""glassformer presets [NAME]"""

from typing import Annotated

from glassformer.cli.arguments import fail
from glassformer.config.presets import PRESETS, preset
from glassformer.config.schema import to_dict, to_toml
from glassformer.cost.parameters import parameter_counts
from glassformer.formatting import output_width, table


def main(*names: Annotated[str, "[NAME]"]) -> int:
    """List the named model configurations and their sizes, or print one as TOML.

    Args:
        names: The configuration to print.

    Examples:
        glassformer presets gpt2
    """
    if len(names) > 1:
        fail("presets takes at most one name; give no name for the whole list")
    if names:
        print(to_toml(to_dict(preset(names[0]))), end="")
        return 0
    rows = [("preset", "stacks", "layers", "d_model", "vocabulary", "parameters")]
    for name, config in PRESETS.items():
        stacks = "+".join(s for s in ("encoder", "decoder") if getattr(config, s) is not None)
        size = f"{parameter_counts(config).total:,}" if config.vocab_size else "set by tokenizer"
        n_layers, vocabulary = str(config.head_stack.n_layers), str(config.vocab_size or "-")
        rows.append((name, stacks, n_layers, str(config.d_model), vocabulary, size))
    print(table(rows, output_width(), n_words=2))
    return 0
