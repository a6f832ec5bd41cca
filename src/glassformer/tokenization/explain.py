"""The merges that made a token, shown so that a person can read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glassformer.tokenization.bpe_encode import MergeStep


@dataclass(frozen=True)
class ChunkExplanation:
    """One chunk of a text: the symbols it starts as, each merge, and the ids of what is left."""

    start: tuple[str, ...]
    steps: tuple[MergeStep, ...]
    token_ids: tuple[int, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.steps[-1].symbols if self.steps else self.start


@dataclass(frozen=True)
class Explanation:
    """How a text became tokens, chunk by chunk. `str()` of it is the text that `tokenizer explain` prints."""

    chunks: tuple[ChunkExplanation, ...]
    show: Callable[[str], str]

    def __str__(self) -> str:
        return "\n\n".join(_render(chunk, self.show) for chunk in self.chunks)


def _render(chunk: ChunkExplanation, show: Callable[[str], str]) -> str:
    """A line for each state of the chunk, the symbols apart by a bar, with the merge that led to it."""

    def line(label: str, symbols: Sequence[str]) -> str:
        return f"{label:>12}  {'│'.join(map(show, symbols))}"

    lines = [line("start", chunk.start)]
    for step in chunk.steps:
        made = f"{show(step.left)} + {show(step.right)}"
        lines.append(f"{line(f'merge {step.rank + 1}', step.symbols)}    ({made})")
    ids = [f"{show(token)} = {i}" for token, i in zip(chunk.tokens, chunk.token_ids, strict=True)]
    lines.append(f"{'ids':>12}  {'  '.join(ids)}")
    return "\n".join(lines)
