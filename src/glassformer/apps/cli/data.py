"""glassformer data RECIPE|FILE.toml|FILE…"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from glassformer.apps.cli.arguments import Json, with_flags
from glassformer.apps.cli.progress import print_report, reporting
from glassformer.apps.cli.tokenizer import load_tokenizer
from glassformer.apps.cli.train import Source
from glassformer.common.errors import Progress, UserError
from glassformer.data import own_data
from glassformer.data.kinds import KINDS, report_on
from glassformer.store.model_directory import CONFIG, read_config


def main(
    *sources: Source,
    kind: own_data.Kind | None = None,
    tokenizer: Path | None = None,
    json_: Json = False,
    **keys: str,
) -> int:
    """Report on data before training: sizes, the split into training and validation data, repeats, what is dropped.

    Texts, pairs, labelled texts and conversations are read as `glassformer train` reads them, with the same keys. Of
    several files of text, those that are not text are left out, and each is named with the reason.

    Args:
        sources: The name of a recipe, a TOML file, or own data.
        kind: The kind of own data, if it is not clear.
        tokenizer: For texts and conversations, a tokenizer.json or a model directory; by default one is trained as
            `train` does. The context of a model directory is used, too.

    Examples:
        glassformer data mybook.txt
        glassformer data train.en train.de
        glassformer data talks.jsonl --tokenizer runs/smollm2
    """
    run, evidence = own_data.run_of(*sources, kind=kind, changes=keys | {"data.on_bad": "skip"})
    if tokenizer is not None and (tokenizer / CONFIG).exists():
        run = replace(run, model=read_config(tokenizer)[0])
    run = with_flags(run, keys)
    if not json_:
        own_data.note(evidence)
    of_kind = KINDS[run.data.kind]
    if tokenizer is not None and not of_kind.reports_tokens:
        raise UserError(f"--tokenizer is for texts and conversations, and this data has {run.data.kind}: remove it")
    if not of_kind.report:
        raise UserError(f"no report on {run.data.kind}: it is for texts, pairs, labelled texts and conversations")
    known = None if tokenizer is None else load_tokenizer(tokenizer)
    print_report(report_on(run, known, _phase), as_json=json_)
    return 0


@contextmanager
def _phase(title: str) -> Iterator[Progress]:
    with reporting() as reporter, reporter.phase(title) as progress:
        yield progress
