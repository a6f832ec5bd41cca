"""glassformer score DIR --target FILE"""

import json
from dataclasses import asdict
from pathlib import Path

from glassformer import files
from glassformer.cli.arguments import Dirs, File
from glassformer.cli.inputs_outputs import Loading
from glassformer.cli.progress import bar
from glassformer.cli.translate import cell
from glassformer.data.pairs import aligned_lines
from glassformer.data.records import lines
from glassformer.errors import UserError


def main(
    *directories: Dirs, source: File | None = None, target: File | None = None, json_: bool = False, loading: Loading
) -> int:
    """Print the log-probability of each target in order: one line "nats TAB tokens TAB target" per target.

    A causal model scores targets alone, or each after its source. Empty targets are scored too: an encoder-decoder can
    predict the end token first.

    Args:
        directories: Model directories; several encoder-decoders average their probabilities.
        source: A text file with one source, or one beginning of a text, per line.
        target: A text file whose line i is the target of source line i.
        json_: Print one JSON object per target: log_prob (nats), n_tokens, n_bytes, source if given, target. An
            encoder-decoder also counts the end token of the target.

    Examples:
        glassformer score runs/en-de --source test.en --target test.de
    """
    if target is None:
        raise UserError("the target side is missing: give --target FILE")
    if source is None:
        sources, targets = None, lines(files.read_text(files.as_path(target, "--target")))
    else:
        pairs = aligned_lines(Path(source), Path(target))
        sources, targets = [one for one, _ in pairs], [other for _, other in pairs]
    model = loading.ensemble(directories)
    if sources is None and model.is_seq2seq:
        raise UserError("the source side is missing: give --source FILE")
    with bar("scoring") as log:
        scores = model.score(targets, log=log) if sources is None else model.score(sources, targets, log=log)
    for i, (found, text) in enumerate(zip(scores, targets, strict=True)):
        if json_:
            values = asdict(found) | ({} if sources is None else {"source": sources[i]}) | {"target": text}
            print(json.dumps(values, ensure_ascii=False))
        else:
            print(f"{found.log_prob:.4f}\t{found.n_tokens}\t{cell(text)}")
    return 0
