"""glassformer presets [NAME]"""

from glassformer.cli.arguments import fail, read_words
from glassformer.config.presets import PRESETS, preset
from glassformer.config.schema import to_dict, to_toml
from glassformer.cost.parameters import parameter_counts

HELP = """usage: glassformer presets [NAME]

Lists the named model configurations and their sizes; with a NAME, prints that one as TOML."""


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    words = read_words(argv, [])
    if len(words.places) > 1:
        fail("presets takes one name, or none for the whole list")
    if words.places:
        print(to_toml(to_dict(preset(words.places[0]))), end="")
        return 0
    print(f"{'preset':<18}{'stacks':<17}{'layers':>7}{'d_model':>9}{'vocabulary':>12}{'parameters':>17}")
    for name, config in PRESETS.items():
        stacks = "+".join(s for s in ("encoder", "decoder") if getattr(config, s) is not None)
        size = f"{parameter_counts(config).total:,}" if config.vocab_size else "the tokenizer's"
        print(
            f"{name:<18}{stacks:<17}{config.head_stack.n_layers:>7}{config.d_model:>9}"
            f"{config.vocab_size or '-':>12}{size:>17}"
        )
    return 0
