"""glassformer tokenizer train|encode|report"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glassformer.apps.cli.arguments import Files, Group, read_stdin
from glassformer.apps.cli.inputs_outputs import require_output
from glassformer.apps.cli.progress import reporting
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.common.formatting import show
from glassformer.config.run import TextData
from glassformer.data.kinds import look_at
from glassformer.data.texts import read_documents, read_pieces

if TYPE_CHECKING:
    from glassformer.tokenization.tokenizer import Tokenizer

TokenizerFile = Annotated[Path, "TOKENIZER", "A tokenizer.json, or a model directory."]
Scheme = Literal["byte", "char", "word", "whitespace", "whole_words"]


def train(
    *text_files: Files,
    vocab_size: int,
    out: Path,
    scheme: Scheme = "byte",
    text_field: str = "text",
) -> int:
    """Train a BPE tokenizer and write tokenizer.json.

    Args:
        vocab_size: Number of tokens, including special tokens; 0 = only the alphabet, without merges.
        out: The file to write.
        scheme: byte is lossless on every text; the other schemes have a rule for unknown characters.
        text_field: The field of a jsonl record that holds the text.

    Examples:
        glassformer tokenizer train mybook.txt --vocab-size 4096 --out book.json
    """
    if not text_files:
        raise UserError("give at least one text file to train on")
    require_output(out, text_files)
    for path in text_files:
        look_at(TextData(path=path, text_field=text_field))
    from glassformer.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer  # imports numpy

    texts = (piece.text for piece in read_pieces(list(text_files), TextData(text_field=text_field)))
    with reporting() as reporter, reporter.phase("training the tokenizer") as progress:
        tokenizer = Tokenizer.train(texts, vocab_size=vocab_size, scheme=scheme, progress=progress)
    tokenizer.save(out)
    print(f"{out}: {tokenizer.vocab_size:,} tokens ({len(SPECIAL_TOKENS)} special), {len(tokenizer.merges):,} merges")
    return 0


def encode(
    tokenizer: TokenizerFile,
    text: str,
    /,
    *,
    allow_special: bool = False,
    tokens: bool = False,
    merges: bool = False,
    longest_match: bool = False,
) -> int:
    """Print the ids of a text, its tokens, or the merges that form them.

    Args:
        text: The text, or - for standard input.
        allow_special: Read "[MASK]" and the like in the text as special tokens.
        tokens: Print readable tokens instead of ids.
        merges: Print the merges that form the tokens, step by step, instead of ids.
        longest_match: Split at the longest token anywhere in the text, instead of by merges.

    Examples:
        glassformer tokenizer encode runs/mybook "It was" --tokens
        glassformer tokenizer encode runs/mybook lowest --merges
    """
    if merges and (tokens or allow_special or longest_match):
        raise UserError("--merges prints the merges of a text: remove --tokens, --allow-special and --longest-match")
    loaded = load_tokenizer(tokenizer)
    if text == "-":
        text = read_stdin()
    if merges:
        print(loaded.explain(text))
        return 0
    encode_text = loaded.encode_longest_match if longest_match else loaded.encode
    ids = encode_text(text, allow_special=loaded.special_tokens if allow_special else ())
    print(" ".join(loaded.tokens(ids) if tokens else map(str, ids)))
    return 0


def report(tokenizer: TokenizerFile, /, *text_files: Files) -> int:
    """Report vocabulary size, tokens per word, bytes per token and the most frequent tokens on a text.

    Examples:
        glassformer tokenizer report runs/mybook mybook.txt
    """
    for path in text_files:
        look_at(TextData(path=path))
    show(str(load_tokenizer(tokenizer).report(read_documents(list(text_files)))))
    return 0


def load_tokenizer(path: Path) -> "Tokenizer":
    """Load a tokenizer.json, or the tokenizer of a model directory."""
    if path.is_dir():
        path = path / "tokenizer.json"
    with files.reading(path):
        path.stat()
    from glassformer.tokenization.tokenizer import Tokenizer  # imports numpy

    return Tokenizer.load(path)


main = Group(
    "Train and inspect tokenizers; TOKENIZER is a tokenizer.json or a model directory.",
    (train, encode, report),
)
