"""How much of a generated text is copied from the training text."""


def longest_overlap(text: str, corpus: str) -> str:
    """The longest stretch of `text` that stands verbatim in `corpus`; the first one among equals.

    >>> longest_overlap("the cat sat", "a cat sits")
    ' cat s'
    """
    best = ""
    end = 0
    for start in range(len(text)):
        end = max(end, start)
        while end < len(text) and text[start : end + 1] in corpus:
            end += 1
        if end - start > len(best):
            best = text[start:end]
    return best
