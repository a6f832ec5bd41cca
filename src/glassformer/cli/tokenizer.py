"""glassformer tokenizer train|encode|decode|explain"""

from pathlib import Path
from typing import Annotated, Literal

from glassformer.cli.arguments import Files, Group, read_stdin
from glassformer.data.sources import read_documents, read_pieces
from glassformer.errors import UserError
from glassformer.terminal import TerminalReporter
from glassformer.tokenization.pretokenize import Scheme
from glassformer.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer

TokenizerFile = Annotated[Path, "TOKENIZER"]


def train(
    *text_files: Files,
    vocab_size: int,
    out: Path,
    scheme: Scheme = "byte",
    learner: Literal["glassformer", "tokenizers"] = "glassformer",
    text_field: str = "text",
) -> int:
    """Learns a BPE tokenizer and writes tokenizer.json.

    Args:
        text_files: txt or jsonl files, folders of them, or builtin:NAME.
        vocab_size: Tokens, special ones included; 0 = the alphabet, no merges.
        out: The file to write.
        scheme: byte loses nothing on any text; the others have a rule for unknown characters.
        learner: Our own, or the Rust library's; they learn the same merges.
        text_field: The field of a jsonl record that holds the text.
    """
    if not text_files:
        raise UserError("give at least one text file to learn from")
    from glassformer.cli.inputs_outputs import require_output

    require_output(out, text_files)
    texts = (piece.text for piece in read_pieces(list(text_files), text_field=text_field))
    with TerminalReporter() as reporter, reporter.phase("learning the tokenizer") as progress:
        tokenizer = Tokenizer.train(texts, vocab_size=vocab_size, scheme=scheme, learner=learner, progress=progress)
    tokenizer.save(out)
    print(f"{out}: {tokenizer.vocab_size:,} tokens ({len(SPECIAL_TOKENS)} special), {len(tokenizer.merges):,} merges")
    return 0


def encode(tokenizer: TokenizerFile, text: str, /, *, allow_special: bool = False, tokens: bool = False) -> int:
    """The ids of a text.

    Args:
        tokenizer: A tokenizer.json, or a model directory.
        text: The text, or - for standard input.
        allow_special: Let "[MASK]" and its like in the text be special tokens.
        tokens: Print the tokens readably in place of ids.
    """
    loaded = load_tokenizer(tokenizer)
    ids = loaded.encode(
        read_stdin() if text == "-" else text, allow_special=loaded.special_tokens if allow_special else ()
    )
    print(" ".join(loaded.tokens(ids) if tokens else map(str, ids)))
    return 0


def decode(tokenizer: TokenizerFile, /, *ids: Annotated[int, "ID…"]) -> int:
    """The text of ids.

    Args:
        tokenizer: A tokenizer.json, or a model directory.
        ids: Token ids; none reads them from standard input.
    """
    loaded = load_tokenizer(tokenizer)
    try:
        numbers = list(ids) or [int(word) for word in read_stdin().split()]
    except ValueError as error:
        raise UserError("standard input must hold token ids, whole numbers apart by spaces") from error
    print(loaded.decode(numbers))
    return 0


def explain(tokenizer: TokenizerFile, word: Annotated[str, "WORD"], /) -> int:
    """The merges that make a word's tokens, step by step.

    Args:
        tokenizer: A tokenizer.json, or a model directory.
        word: A word or a short text.
    """
    print(load_tokenizer(tokenizer).explain(word))
    return 0


def report(tokenizer: TokenizerFile, /, *text_files: Files) -> int:
    """Vocabulary size, tokens per word, bytes per token and the most frequent tokens on some text.

    Args:
        tokenizer: A tokenizer.json, or a model directory.
        text_files: txt or jsonl files, folders of them, or builtin:NAME.
    """
    print(load_tokenizer(tokenizer).report(read_documents(list(text_files))))
    return 0


def load_tokenizer(path: Path) -> Tokenizer:
    """From a tokenizer.json, or out of a model directory."""
    return Tokenizer.load(path / "tokenizer.json" if path.is_dir() else path)


main = Group(
    "Learns a tokenizer and shows what it does; TOKENIZER is a tokenizer.json or a model directory.",
    (train, encode, decode, explain, report),
)
