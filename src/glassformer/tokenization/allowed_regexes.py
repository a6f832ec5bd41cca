"""The expressions by which well-known tokenizers split and normalise text: the only ones that a file may bring.

All end in a time that grows with the text: their alternatives begin with different characters, and a run of one kind
of character is never matched by two repetitions that stand side by side, except letters without case in those that
tell capital from small letters, which the engine settles by one step back.
"""

from glassformer.tokenization.pretokenize import WORD_END

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"

KNOWN_EXPRESSIONS = frozenset(
    [
        WORD_END,
        # GPT-2, OPT, Phi (where `ByteLevel` does not say it)
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # Llama 3, cl100k as `transformers` writes it
        rf"{_SUFFIXES}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
        # cl100k as OpenAI writes it
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
        r"\s+(?!\S)|\s",
        # Qwen 2, 2.5 and 3, OLMo
        rf"{_SUFFIXES}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}|{_REST}",
        # Qwen 3.5
        rf"{_SUFFIXES}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+",
        # o200k, Llama 4
        rf"{_BEFORE_WORD}{_CAPITALS}*{_SMALL}+{_SUFFIXES}?|{_BEFORE_WORD}{_CAPITALS}+{_SMALL}*{_SUFFIXES}?|"
        rf"\p{{N}}{{1,3}}|{_REST_WITH_SLASH}",
        # Mistral's Tekken
        rf"{_BEFORE_WORD}{_CAPITALS}*{_SMALL}+|{_BEFORE_WORD}{_CAPITALS}+{_SMALL}*|\p{{N}}|{_REST_WITH_SLASH}",
        # numbers by themselves, in threes: Falcon, DeepSeek
        r"[0-9][0-9][0-9]",
        r"\p{N}{1,3}",
        # DeepSeek 3, whose file has the line ends themselves
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        # SentencePiece: several spaces become one (T5, ALBERT, XLM-R)
        r" {2,}",
        r"\s+",
    ]
)
