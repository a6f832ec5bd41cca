"""glassformer demo"""

import time
from itertools import count
from pathlib import Path
from typing import Annotated

from glassformer import recipes
from glassformer.cli.arguments import fail, with_flags
from glassformer.cli.progress import TerminalReporter

PROMPT = "The statement"


def main(*texts: Annotated[str, ""], **keys: str) -> int:
    """Learns a tokenizer and a model on Python's own documentation, and lets the model write.

    Every machine with Python has this text.
    """
    from glassformer import api
    from glassformer.data.corpus import Corpus
    from glassformer.evaluation.text import longest_overlap

    if texts:
        fail("demo takes no file: for a text of yours, glassformer train FILE.txt")
    run = with_flags(recipes.load("python-docs"), keys)
    folder = next(path for n in count(1) if not (path := Path("runs") / (f"demo-{n}" if n > 1 else "demo")).exists())
    began = time.perf_counter()
    with TerminalReporter() as reporter:
        api.train(run, folder, reporter)
    model = api.load(folder)
    report = model.evaluate()
    text = model.generate(PROMPT, max_new_tokens=run.model.max_len - len(model.prompt_ids(PROMPT)))
    assert run.data.path is not None
    corpus = "".join(Corpus([run.data.path], valid_fraction=run.data.valid_fraction).training_texts())
    overlap = longest_overlap(PROMPT + text, corpus)
    print(f"\n{PROMPT}{text}\n")
    print(
        f"validation loss {report.loss:.4f} nats per token, {report.bits_per_byte:.3f} bits per byte, "
        f"after {time.perf_counter() - began:.0f} s"
    )
    print(f"longest verbatim overlap of this passage with the training text: {len(overlap)} characters: {overlap!r}")
    print(f"the model is in {folder}; now try: glassformer generate {folder}")
    return 0
