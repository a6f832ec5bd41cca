"""glassformer score DIR --target FILE"""

from dataclasses import asdict
from pathlib import Path

from glassformer.apps.cli.arguments import File
from glassformer.apps.cli.inputs_outputs import Loading, Texted, directories_and_text, require_one
from glassformer.apps.cli.progress import bar, print_json
from glassformer.apps.cli.translate import cell
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.data.formats import aligned_lines, lines


def main(
    *models: Texted, source: File | None = None, target: File | None = None, json_: bool = False, loading: Loading
) -> int:
    """Print the log-probability of each target in order: one line "nats TAB tokens TAB target" per target.

    A causal model scores targets alone, or each after its source. Empty targets are scored too: an encoder-decoder can
    predict the end token first.

    Args:
        models: Model directories (several encoder-decoders average their probabilities), then a target for a causal
            model: the last argument if it is not a folder.
        source: A text file with one source, or one beginning of a text, per line.
        target: A text file whose line i is the target of source line i.
        json_: Print one JSON object per target: log_prob (nats), n_tokens, n_bytes, source if given, target. An
            encoder-decoder also counts the end token of the target.

    Examples:
        glassformer score runs/mybook "It was the best of times"
        glassformer score runs/en-de --source test.en --target test.de
    """
    directories, text = directories_and_text(models)
    loading.find(directories)
    require_one(text, target, "--target")
    if source is not None and target is None:
        raise UserError("the target side is missing: give --target FILE, whose line i is the target of source line i")
    if text is None and target is None:
        raise UserError("no target given: give a text or --target FILE")
    sources, targets = _sides(text, source, target)
    model = loading.ensemble(directories, "score")
    if sources is None and model.is_seq2seq:
        raise UserError("the source side is missing: give --source FILE and --target FILE")
    with bar("scoring"):
        scores = model.score(targets, source=sources)
    for i, (score, text) in enumerate(zip(scores, targets, strict=True)):
        if json_:
            given = {} if sources is None else {"source": sources[i]}
            print_json(asdict(score) | given | {"target": text})
        else:
            print(f"{score.log_prob:.4f}\t{score.n_tokens}\t{cell(text)}")
    return 0


def _sides(text: str | None, source: str | None, target: str | None) -> tuple[list[str] | None, list[str]]:
    if source is not None and target is not None:
        pairs = aligned_lines(Path(source), Path(target))
        return [one for one, _ in pairs], [other for _, other in pairs]
    if text is not None:
        return None, [text]
    return None, lines(files.read_text(files.as_path(target, "--target")))
