"""glassformer demo"""

from itertools import chain, count
from pathlib import Path
from typing import Annotated

from glassformer.apps.cli.arguments import with_flags
from glassformer.apps.cli.progress import Shown
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.run import TextData

PROMPT = "The statement"


def main(*texts: Annotated[str, ""], **keys: str) -> int:
    """Train a tokenizer and a model on Python's documentation, then let the model write.

    Every installation of Python has this text.

    Examples:
        glassformer demo
        glassformer demo --max-steps 500
    """
    if texts:
        raise UserError("demo takes no file: to train on your own text, use `glassformer train FILE.txt`")
    from glassformer import api

    run = with_flags(recipes.load("python-docs"), keys)
    names = chain(["demo"], (f"demo-{n}" for n in count(2)))
    folder = next(path for name in names if not (path := Path("runs") / name).exists())
    model = api.load(Shown().trained(lambda reporter: api.train(run, folder, reporter)).folder)
    from glassformer.data.corpus import Corpus
    from glassformer.evaluation.text import longest_overlap

    text = model.generate(PROMPT, max_new_tokens=run.model.max_len - len(model.prompt_ids(PROMPT)))
    assert isinstance(run.data, TextData)
    overlap = longest_overlap(PROMPT + text, "".join(Corpus(run.data).training_texts()))
    print(f"\n{PROMPT}{text}\n")
    print(f"longest passage of this text that is also in the training text: {len(overlap)} characters: {overlap!r}")
    return 0
