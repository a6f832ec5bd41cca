"""glassformer answer DIR "A question?" --input context.txt"""

from dataclasses import asdict

from glassformer.cli.arguments import Dir, File
from glassformer.cli.inputs_outputs import Loading, input_text
from glassformer.cli.progress import print_json
from glassformer.cli.translate import cell
from glassformer.errors import UserError, require_integer


def main(
    directory: Dir,
    question: str,
    /,
    *,
    input: File | None = None,
    context: str | None = None,
    max_tokens: int = 15,
    json_: bool = False,
    loading: Loading,
) -> int:
    """Answer a question by a part of a text: print "answer TAB score TAB start TAB end" (characters of the text).

    Args:
        question: The question.
        input: A file with the text that contains the answer, or - for standard input, which is the default.
        context: The text itself, in place of a file.
        max_tokens: Most tokens of an answer.
        json_: Print a JSON object with text, score, start and end.

    Examples:
        glassformer answer squad "Who wrote it?" --input article.txt
    """
    if context is not None and input is not None:
        raise UserError("give --context TEXT or --input FILE, not both")
    require_integer("max-tokens", max_tokens, 1, "the number of tokens of the longest answer")
    loading.find([directory])
    if context is None:
        context = input_text(input)
    model = loading.ensemble([directory], "answer")
    answer = model.answer(question, context, max_tokens=max_tokens)
    if json_:
        print_json(asdict(answer))
    else:
        print(f"{cell(answer.text)}\t{answer.score:.4f}\t{answer.start}\t{answer.end}")
    return 0
