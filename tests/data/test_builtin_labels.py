"""The two built-in tasks: records, checked with other code than the module's, and parts that do not leak."""

import ast
import importlib
import keyword
import re
import token as token_kinds
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from glassformer.common.errors import UserError
from glassformer.data import builtin_records
from glassformer.data.builtin import PARTS, rows
from glassformer.data.builtin_records import MASK, PACKAGES, masked, part_of, tokens
from glassformer.data.records import Kind


def test_docstrings_have_balanced_classes() -> None:
    records = list(rows("builtin:docstrings", "labels"))
    assert len({text for text, _ in records}) == len(records) > 2000
    counts = Counter(label for _, label in records)
    assert set(counts) == set(PACKAGES) and min(counts.values()) >= 60
    assert max(counts.values()) < 0.2 * len(records)


def test_docstrings_do_not_contain_their_class() -> None:
    for text, label in rows("builtin:docstrings", "labels"):
        assert label.lower() not in text.lower()
        assert 20 <= len(text) <= 400 and "\n" not in text and text == text.strip()


def test_docstrings_are_from_their_package() -> None:
    import mailbox
    import typing

    for module in (mailbox, typing):
        with open(module.__file__ or "", encoding="utf-8") as file:
            tree = ast.parse(file.read())
        first = masked(ast.get_docstring(tree) or "")
        assert (first, module.__name__) in set(rows("builtin:docstrings", "labels"))


def test_docstrings_are_masked_and_shortened() -> None:
    assert masked("An XMLReader  of\nemails") == f"An {MASK}Reader of {MASK}s"
    assert masked("a" * 500) == "a" * 400
    assert masked("abc " * 99 + "abcd efg") == "abc " * 99 + "abcd"
    assert masked("abc " * 99 + "abcde") == ("abc " * 99).strip()


def test_statements_have_the_tags_of_their_tokens() -> None:
    source = '# before\n\n@a\ndef f(x=1.5):  # why\n    """d"""\n    return (x,  # in\n  not y)\n'
    found = list(tokens(source))
    assert found[0] == (("@", "a"), ("OP", "NAME"))
    assert found[1][0] == ("def", "f", "(", "x", "=", "1.5", ")", ":", "# why")
    assert found[1][1] == ("KEYWORD", "NAME", "OP", "NAME", "OP", "NUMBER", "OP", "OP", "COMMENT")
    assert found[2] == (('"""d"""',), ("STRING",))
    assert found[3][0] == ("return", "(", "x", ",", "# in", "not", "y", ")")
    assert len(found) == 4


def test_an_f_string_is_a_string_in_every_python() -> None:
    ((words, tags),) = tokens("x = f'{a} b'\n")
    assert tags[:3] == ("NAME", "OP", "STRING") and words[2].startswith("f'")
    assert not {"FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END"} & set(tags)


def test_the_tags_of_python_source_fit_their_tokens() -> None:
    kinds: Counter[str] = Counter()
    for words, tags in rows("builtin:python-tokens", "tags"):
        assert 3 <= len(words) == len(tags) <= 40
        kinds.update(tags)
        for word, tag in zip(words, tags, strict=True):
            assert word.strip() and len(word) <= 40 and "\n" not in word
            if tag == "KEYWORD" or tag == "NAME":
                assert word.isidentifier() and keyword.iskeyword(word) == (tag == "KEYWORD")
            elif tag == "OP":
                assert word in token_kinds.EXACT_TOKEN_TYPES
            elif tag == "NUMBER":
                assert re.match(r"\.?\d", word)
    assert set(kinds) == {"KEYWORD", "NAME", "NUMBER", "STRING", "OP", "COMMENT"}
    assert 0.4 < kinds["OP"] / kinds.total() < 0.55


def test_statements_are_distinct() -> None:
    records = list(rows("builtin:python-tokens", "tags"))
    assert len({words for words, _ in records}) == len(records)
    assert 10_000 < len(records) < 20_000


def test_parts_add_up_to_the_data_and_do_not_overlap() -> None:
    kinds: dict[Kind, str] = {"labels": "docstrings", "tags": "python-tokens"}
    for kind, name in kinds.items():
        everything = Counter(map(repr, rows(f"builtin:{name}", kind)))
        parts = [Counter(map(repr, rows(f"builtin:{name}#{part}", kind))) for part in PARTS]
        assert parts[0] + parts[1] + parts[2] == everything and max(everything.values()) == 1
        assert all(0.04 < part.total() / everything.total() < 0.2 for part in parts[1:])
    assert all(part_of(text) == "test" for text, _ in rows("builtin:docstrings#test", "labels"))


@pytest.mark.parametrize(("name", "part"), [("tarfile", "test"), ("inspect", "train")])
def test_statements_of_one_file_are_in_one_part(name: str, part: str) -> None:
    module = importlib.import_module(name)
    with open(module.__file__ or "", encoding="utf-8") as file:
        of_file = {words for words, _ in tokens(file.read())}
    found = {words for words, _ in rows(f"builtin:python-tokens#{part}", "tags")} & of_file
    assert part_of(f"{name}.py") == part and len(found) > 150


@pytest.mark.parametrize("records", [builtin_records.docstrings, builtin_records.python_tokens])
def test_records_are_deterministic(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages show it: all take seconds."""
    monkeypatch.setattr(builtin_records, "PACKAGES", ("mailbox", "tarfile"))
    once, again = records.__wrapped__(), records.__wrapped__()  # without the cache
    assert once == again and len(once) > 50


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("builtin:docstring", "did you mean builtin:docstrings"),
        ("builtin:docstrings#dev", "is not a part; use one of builtin:docstrings#train, "),
        ("builtin:x", "use one of builtin:docstrings"),
        ("builtin:python-tokens", "has tags: set data.outputs to tags"),
    ],
)
def test_unknown_addresses_of_labels_are_named(address: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        rows(address, "labels")


def test_a_python_without_its_source_gives_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="has no source files of the standard library"):
        list(builtin_records._sources())
