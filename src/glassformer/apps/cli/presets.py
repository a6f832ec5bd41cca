"""glassformer presets [NAME]"""

from typing import Annotated

from glassformer.common.errors import UserError
from glassformer.common.formatting import output_width, table
from glassformer.config.presets import N_PARAMETERS, PRESETS, preset
from glassformer.config.schema import to_dict
from glassformer.config.written import to_toml


def main(*names: Annotated[str, "[NAME]"]) -> int:
    """List the named model configurations and their sizes, or print one as TOML.

    Args:
        names: The configuration to print.

    Examples:
        glassformer presets gpt2
    """
    if len(names) > 1:
        raise UserError("presets takes at most one name; give no name for the whole list")
    if names:
        print(to_toml(to_dict(preset(names[0]))), end="")
        return 0
    rows = [("preset", "stacks", "layers", "d_model", "vocabulary", "parameters")]
    for name, config in PRESETS.items():
        stacks = "+".join(s for s in ("encoder", "decoder") if getattr(config, s) is not None)
        vocabulary, size = "-", "set by tokenizer"
        if config.vocab_size:
            vocabulary, size = str(config.vocab_size), f"{N_PARAMETERS[name]:,}"
        rows.append((name, stacks, str(config.head_stack.n_layers), str(config.d_model), vocabulary, size))
    print(table(rows, output_width(), n_words=2))
    return 0
