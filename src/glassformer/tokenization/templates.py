"""Templates such as `[CLS] A [SEP] B [SEP]`: special tokens around one or two texts (Devlin et al. 2019, section 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glassformer.errors import UserError


@dataclass(frozen=True)
class Template:
    """Special tokens and segments in order. A segment is a single capital letter: `A` the first text, `B` the
    second.
    """

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Reads a template whose parts stand apart by spaces, with the segments `A`, `B` … in order, each
        once.

        >>> Template.parse("[CLS] A [SEP]").parts
        ('[CLS]', 'A', '[SEP]')
        """
        template = cls(tuple(text.split()))
        segments = [part for part in template.parts if _is_segment(part)]
        if not segments or segments != [chr(ord("A") + i) for i in range(len(segments))]:
            raise UserError(f"the template {text!r} must name its texts A, B … in order, each once: '[CLS] A [SEP]'")
        return template

    def fill(self, segments: Sequence[Sequence[int]], ids: Mapping[str, int]) -> tuple[list[int], list[int]]:
        """The token ids, and for each its token type: 0 up to the first `B`, then 1, and so on. `ids` is the
        vocabulary.

        >>> Template.parse("[CLS] A [SEP] B [SEP]").fill([[7, 8], [9]], {"[CLS]": 4, "[SEP]": 5})
        ([4, 7, 8, 5, 9, 5], [0, 0, 0, 0, 1, 1])
        """
        n_segments = sum(map(_is_segment, self.parts))
        if len(segments) != n_segments:
            raise ValueError(f"the template {' '.join(self.parts)!r} needs {n_segments} texts, not {len(segments)}")
        token_ids: list[int] = []
        token_types: list[int] = []
        token_type = 0
        for part in self.parts:
            if _is_segment(part):
                token_type = ord(part) - ord("A")
                added = list(segments[token_type])
            elif part in ids:
                added = [ids[part]]
            else:
                raise UserError(
                    f"the template {' '.join(self.parts)!r} needs {part}, which the tokenizer does not have"
                )
            token_ids += added
            token_types += [token_type] * len(added)
        return token_ids, token_types


def _is_segment(part: str) -> bool:
    return len(part) == 1 and "A" <= part <= "Z"
