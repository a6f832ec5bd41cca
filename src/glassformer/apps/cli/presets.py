"""glassformer presets [NAME]"""

from typing import Annotated

from glassformer.common.formatting import output_width, table
from glassformer.config.presets import N_PARAMETERS, PRESETS, RECURRENT_PRESETS, preset
from glassformer.config.schema import to_dict
from glassformer.config.written import to_toml


def main(name: Annotated[str, "[NAME]"] | None = None, /) -> int:
    """List the named model configurations and their sizes, or print one as TOML.

    Args:
        name: The configuration to print.

    Examples:
        glassformer presets gpt2
    """
    if name is not None:
        print(to_toml(to_dict(preset(name))), end="")
        return 0
    rows = [("preset", "stacks", "layers", "d_model", "vocabulary", "parameters")]
    for of, config in PRESETS.items():
        stacks = "+".join(s for s in ("encoder", "decoder") if getattr(config, s) is not None)
        vocabulary, size = "-", "set by tokenizer"
        if config.vocab_size:
            vocabulary, size = str(config.vocab_size), f"{N_PARAMETERS[of]:,}"
        rows.append((of, stacks, str(config.head_stack.n_layers), str(config.d_model), vocabulary, size))
    for of, recurrent in RECURRENT_PRESETS.items():
        sizes = (str(recurrent.n_layers), str(recurrent.d_decoder), str(recurrent.vocab_size), f"{N_PARAMETERS[of]:,}")
        rows.append((of, "recurrent", *sizes))
    print(table(rows, output_width(), n_words=2))
    return 0
