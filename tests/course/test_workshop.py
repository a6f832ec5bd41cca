"""The workshop: solutions pass, stubs are empty, every known mistake is recognised, and other errors are described."""

import csv
import json
import os
import re
import sys
import threading
import time
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.apps import course
from glassformer.apps.cli.main import run
from glassformer.apps.course.mytransformer.generate import NextLogP
from glassformer.apps.course.workshop import checking
from glassformer.apps.course.workshop.breaking import every_fault, write_broken
from glassformer.apps.course.workshop.checking import difference, different, judged, result_of
from glassformer.apps.course.workshop.exercise import Exercise, Use, use_variant
from glassformer.apps.course.workshop.exercises import every_exercise, exercise_of
from glassformer.apps.course.workshop.folder import PROGRESS, check, start
from glassformer.apps.course.workshop.grading import Grade, table
from glassformer.apps.course.workshop.tables import PACKAGE, SOLUTIONS, Known, Mistake, Sign, every_table, read
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.inference import sampling
from glassformer.inference.beam_reference import beam_search_reference
from glassformer.inference.fill import restore_spans
from glassformer.inference.search import Search
from glassformer.models.blocks import Inputs
from glassformer.models.build import build_model
from glassformer.nn.attention import attention_reference
from glassformer.nn.masks import Mask, positions_from_mask
from glassformer.nn.positions import Rotary, apply_rotary, relative_bucket, rotary_frequencies, sinusoid
from glassformer.nn.recurrence import SingleHeadAttention
from glassformer.objectives import noise, preference
from glassformer.training.schedules import inverse_sqrt
from tolerances import NETWORK, assert_close, near

EXERCISES = every_exercise()
SOLVED = {name: exercise.solution for name, exercise in EXERCISES.items()}
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_right(name: str) -> None:
    exercise = EXERCISES[name]
    assert str(judged(exercise, exercise.solution)) == f"{name}: right."
    assert judged(exercise, None).state == "empty"


def test_every_stub_is_empty_and_has_the_docstring_of_the_solution(tmp_path: Path) -> None:
    start(tmp_path)
    progress = check(tmp_path)
    assert not progress.is_right and {verdict.state for verdict in progress.verdicts} == {"empty"}
    for exercise in EXERCISES.values():
        stub = (tmp_path / PACKAGE / exercise.file).read_text("utf-8")
        assert exercise.solution.__doc__.split("\n")[0] in stub and "write this function" in stub


@pytest.mark.parametrize("name", EXERCISES)
def test_tests_with_other_numbers_accept_the_solution(name: str) -> None:
    """`course grade --seed` asks for both: a mistake may have the right results for some numbers."""
    use_variant(7)
    try:
        assert judged(EXERCISES[name], EXERCISES[name].solution).is_right
    finally:
        use_variant(0)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_known_mistake_is_named(name: str, subtests: pytest.Subtests) -> None:
    """Two mistakes of one exercise have different results in its tests, so the sentence is that of the right one."""
    exercise = EXERCISES[name]
    for mistake in exercise.mistakes:
        with subtests.test(mistake.new[:30]):
            torch.manual_seed(0)
            verdict = judged(exercise, exercise.with_mistakes(mistake))
            assert (verdict.state, verdict.sentence) == ("mistake", mistake.sentence)
            page, _, anchor = verdict.section.partition("#")
            text = (DOCS / f"{page}.md").read_text("utf-8")
            assert not anchor or f"({anchor})=" in text or anchor in headings(text)


@pytest.mark.parametrize("name", EXERCISES)
def test_the_known_mistakes_of_an_exercise_differ(name: str) -> None:
    exercise = EXERCISES[name]
    cases = exercise.cases()
    found = [
        [result_of(exercise.tested(exercise.with_mistakes(mistake)), given, exercise.has_gradient) for given in cases]
        for mistake in exercise.mistakes
    ]
    for (i, first), (j, second) in combinations(enumerate(found), 2):
        assert any(map(different, second, first)), f"mistakes {i} and {j}: {exercise.mistakes[j].new}"
    for mistake, results in zip(exercise.mistakes, found, strict=True):
        # Errors are compared by their type: with errors alone, every function with such an error has the mistake.
        assert not all(result.error for result in results), mistake.new


def test_each_table_has_the_exercises_of_its_file_and_excerpts_that_occur_once() -> None:
    assert every_table().keys() == EXERCISES.keys()
    for name, known in every_table().items():
        assert known.module == EXERCISES[name].module and known == EXERCISES[name].known
        assert len(set(known.mistakes)) == len(known.mistakes) > 0, name
        assert len(known.hints) == 2, name
        for mistake in known.mistakes:
            assert callable(EXERCISES[name].with_mistakes(mistake))


TABLE = """# half

hint Divide.

hint Divide by 2.

You double.
see course/index
pitfall 7
-     return x / 2
-
+     y = 2 * x
+
+     return y
+

You return nothing.
-  / 2
"""


def test_a_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "ch.mistakes").write_text(TABLE, "utf-8")
    double = Mistake("You double.", "    return x / 2\n", "    y = 2 * x\n\n    return y\n", "course/index", 7)
    mistakes = (double, Mistake("You return nothing.", " / 2", ""))
    assert read(tmp_path / "ch.mistakes") == {"half": Known("ch", ("Divide.", "Divide by 2."), mistakes)}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("# half\n\n", "", 1),  # no function is named
        ("# half", "## half", 1),
        ("\nYou return", "\n# half\n\nYou return", 17),  # a second heading of the function
        ("You double.\n", "", 7),
        ("You double.\n", "You double.\nYou do not divide.\n", 7),
        ("pitfall 7", "pitfall seven", 7),
        ("-  / 2\n", "", 17),  # a sentence alone
        ("-  / 2\n", "+ x\n", 17),
        ("-  / 2", "- / 2 ", 17),  # a space at the end
        ("-  / 2\n", "- 2\n+ 1\n- 3\n+ 4\n", 17),
        ("\n\nYou return", "\nYou return", 7),  # no empty line between two mistakes
        ("\n\nYou return", "\n\n\nYou return", 17),
        ("hint Divide.\n", "hint\n", 3),
        ("\n\nYou return", "\n\nhint Too late.\n\nYou return", 17),
    ],
)
def test_a_malformed_table_is_an_error_with_its_line(old: str, new: str, line: int, tmp_path: Path) -> None:
    assert TABLE.count(old) == 1
    (tmp_path / "ch.mistakes").write_text(TABLE.replace(old, new), "utf-8")
    with pytest.raises(ValueError, match=rf"^ch\.mistakes, line {line}: this is neither the heading"):
        read(tmp_path / "ch.mistakes")


def headings(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_raises_only_errors_that_are_asked_for(name: str) -> None:
    """A use with a mistake of its own would be right for every version that raises an error."""
    exercise = EXERCISES[name]
    for case in exercise.cases():
        error = result_of(exercise.tested(exercise.solution), case, exercise.has_gradient).error
        assert isinstance(error, ValueError | KeyError | None), (case, error)


def test_a_sign_is_read_and_fits_if_nothing_else_fails(tmp_path: Path) -> None:
    (tmp_path / "ch.mistakes").write_text("# half\n\nonly a cache; a mask: shape\nIt is the mask.\n", "utf-8")
    [sign] = read(tmp_path / "ch.mistakes")["half"].signs
    assert sign == Sign(("a cache", "a mask: shape"), "It is the mask.")
    assert sign.fits({"a cache": "1 instead of 2"}) and sign.fits(
        {"a cache": "", "a mask": "shape (2,) instead of (3,)"}
    )
    assert not sign.fits({"a mask": "1 instead of 2"}) and not sign.fits({"a cache": "", "another": ""})


def test_every_sign_names_uses_of_its_exercise() -> None:
    for exercise in EXERCISES.values():
        titles = {case[0].title for case in exercise.cases() if case and isinstance(case[0], Use)}
        for sign in exercise.known.signs:
            assert {one.partition(": ")[0] for one in sign.fails} <= titles, (exercise.name, sign)


def test_a_class_of_which_one_use_fails_gets_its_sign() -> None:
    exercise = EXERCISES["GPT"]
    changed = exercise.source().replace("activation, rate=rate", "activation, rate=rate / 2")
    verdict = judged(exercise, exercise.changed(changed))
    assert verdict.state == "mistake" and verdict.sentence.startswith("`rate` does not reach both additions")


# Answers


def half(numbers: list[float]) -> list[float]:
    """Return each number divided by 2."""
    return [x / 2 for x in numbers]


HALF = Exercise(
    half,
    "course/index",
    lambda: [([1.0, 3.0],), ([],)],
    Known("x", (), (Mistake("You multiply.", "x / 2", "x * 2"), Mistake("You double the last.", "x / 2", "x"))),
)


def slow_half(numbers: list[float]) -> list[float]:
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    return half(numbers)


def half_in_place(numbers: list[float]) -> list[float]:
    numbers[:] = half(numbers)
    return numbers


def broken(numbers: list[float]) -> list[float]:
    return [numbers[len(numbers)]]


def test_empty_wrong_slow_and_endless_functions_get_different_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SLOW_SECONDS", 0.1)
    assert judged(HALF, half).state == "right"
    slow = judged(HALF, slow_half)
    assert slow.state == "slow" and slow.is_right and "where the solution takes" in slow.sentence
    assert judged(HALF, lambda x: [y * 2 for y in x]).sentence == "You multiply."
    assert judged(HALF, lambda x: [y / 3 for y in x]).sentence == (
        "Your results are those of the solution with `3` in place of `2`, in `x / 3`."
    )
    assert judged(HALF, lambda x: [y / 5 for y in x]).sentence == (
        "In test 1 of 2: at [0]: 0.2 instead of 0.5. Given: [1.0, 3.0]."
    )
    assert "the function changes argument 1: work on a copy" in judged(HALF, half_in_place).sentence
    sentence = judged(HALF, broken).sentence
    assert "it raises IndexError" in sentence and "return [numbers[len(numbers)]] In test 2 of 2: the same." in sentence

    def without_end(numbers: list[float]) -> list[float]:
        while True:
            time.sleep(0.01)

    endless = judged(HALF, without_end, limit=0.05)
    assert endless.state == "endless" and "did not end within 0.05 seconds" in endless.sentence
    deadline = time.monotonic() + 60
    while any(thread.name == "check of half" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the function still runs"
        time.sleep(0.01)


def test_differences_name_the_place() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert difference(x, x + 1e-6) == ""
    assert difference(x.mT, x) == "shape (2, 1) instead of (1, 2)"
    assert difference(x.long(), x) == "dtype torch.int64 instead of torch.float32"
    assert difference(x * torch.nan, x) == "at [0, 0]: nan instead of 1"
    assert difference({"a": 1}, {"a": 1, "b": 2}) == "the key 'b' is missing"
    assert difference(x[0, 0], x[0, 1]) == "1 instead of 2"
    assert difference((1, [x, x]), (1, [x, x.mT])) == "at [1][1]: shape (1, 2) instead of (2, 1)"
    assert difference({"a": [x]}, {"a": [x + 1]}) == "at ['a'][0][0, 0]: 1 instead of 2"
    assert difference(None, 1.0) == "None instead of 1.0"
    assert difference(3, [3]) == "3 instead of a list"


WRITTEN = {
    "softmax by the library": ("softmax", "lambda x: torch.softmax(x, -1)", "wrong", "calls torch's softmax"),
    "a list in place of a tuple": ("merge_pair", "lambda s, p: list(solution(s, p))", "wrong", "instead of a tuple"),
    "a tuple in place of a list": ("encode", "lambda w, m: tuple(solution(w, m))", "right", ""),
    "a tensor of one number for an id": ("draw", "lambda p, u: torch.tensor(solution(p, u))", "wrong", "a tensor"),
    "positions of 32 bits": ("positions_of", "lambda x: solution(x).int()", "wrong", "dtype torch.int32"),
    "a number of 32 bits of NumPy": ("perplexity", "lambda *a: np.float32(solution(*a))", "right", ""),
    "a tensor of one number for a number": ("length_penalty", "lambda n, a: torch.tensor(solution(n, a))", "right", ""),
    "label smoothing by the library": (
        "label_smoothed_loss", "lambda x, y, e: F.cross_entropy(x.flatten(0, -2), y.flatten(), label_smoothing=e)",
        "wrong", "calls torch's cross_entropy",
    ),
    "a mask of integers": ("causal_mask", "lambda n: torch.ones(n, n, dtype=torch.int64).tril()", "wrong", "dtype"),
    "a tensor for an id": ("draw", "lambda p, u: p", "wrong", "instead of"),
    "the end of the program": ("draw", "lambda p, u: exit()", "wrong", "SystemExit"),
    "a type that torch refuses": ("with_temperature", "lambda x, t: x.long().softmax(-1)", "wrong", "not implemented"),
    "attention by the library": (
        "attention", "lambda q, k, v, allowed: F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)",
        "wrong", "calls torch's scaled_dot_product_attention",
    ),
    "attention with the softmax of the library": (
        "attention",
        "lambda q, k, v, a: (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~a, -torch.inf).softmax(-1) @ v",
        "mistake", "without any allowed key gives NaN",
    ),
    "a finite number as a mask": (
        "masked_softmax", "lambda x, allowed: x.masked_fill(~allowed, -1e9).softmax(-1)", "mistake", "such as -1e9",
    ),
    "a call of a stub": ("attention", "lambda *given: stub(*given)", "wrong", "It calls stub, which is not written"),
    "moments changed in place": (
        "adamw_step", "lambda w, g, m, *rest: (solution(w, g, m, *rest), m[0].mul_(2))[0]", "wrong", "argument 3",
    ),
    "weights without a gradient": (
        "feed_forward", "lambda x, w: solution(x, {name: y.detach() for name, y in w.items()})", "wrong", "gradient",
    ),
    "an error without its numbers": (
        "split_heads", "lambda x, n: bad() if x.shape[-1] % n else solution(x, n)", "wrong", "does not name 8",
    ),
    "a softmax that underflows": (
        "cross_entropy", "lambda x, y: solution(x.softmax(-1).log(), y)", "mistake", "underflows",
    ),
    "keys of the queries": (
        "multi_head_attention", "lambda x, m, w, n, allowed: solution(x, x, w, n, allowed)", "mistake", "the memory",
    ),
    "a gradient by the library": (
        "gradient_of_softmax_cross_entropy",
        "lambda x, y: torch.autograd.grad(F.cross_entropy(x.requires_grad_(), torch.tensor(y)), x)[0]",
        "wrong", "does not require grad",
    ),
    "an error in every test": ("beam_search", "lambda *a: len(3)", "wrong", "object of type 'int' has no len()"),
    "a matrix in the wrong direction": ("feed_forward", "lambda x, w: x @ w['up'].T", "wrong", "cannot be multiplied"),
    "counts in a plain dict": ("n_grams", "lambda x, n: dict(solution(x, n))", "wrong", "instead of a Counter"),
    "n-grams of characters": (
        "n_grams", "lambda x, n: solution(list(''.join(x)), n)", "wrong", "the key ('der',) is missing",
    ),
    "results in reverse order": ("segments", "lambda *a: solution(*a)[::-1]", "mistake", "in `return ("),
    "a transposed table": ("sinusoids", "lambda n, d: solution(n, d).T", "wrong", "The axes 0 and 1 are exchanged"),
    "a constant factor": ("softmax", "lambda x: solution(x) * 3", "wrong", "Every number is 3 times the right one"),
    "ids that are masked in place": (
        "mask_tokens", "lambda i, *rest: (i.copy_(solution(i, *rest)[0]), i + 0)", "wrong", "also changes argument 1",
    ),
    "a variance of the sample, and no bias": (
        "layer_norm", "lambda x, w, b, e: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + e).sqrt() * w",
        "mistake", "divide by D. In torch, `var` needs correction=0. And: The bias is missing.",
    ),
    "a sum of shifted labels": (
        "cross_entropy", "lambda x, y: F.cross_entropy(x[:, :-1].mT, y[:, 1:], reduction='sum')",
        "mistake", "This is the sum: divide it by the number of labels that count. And: The labels are shifted",
    ),
    "masks of one draw": (
        "mask_tokens", "lambda i, s, d, *rest: solution(i, s, (d[0], d[0]), *rest)", "mistake", "used twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_functions_written_in_another_way_are_judged_by_their_results(case: str) -> None:
    name, code, state, sentence = WRITTEN[case]

    def stub(*given: object) -> None:
        raise NotImplementedError("write this function")

    def bad() -> None:
        raise ValueError("it does not fit")

    names = {"torch": torch, "np": np, "F": F, "solution": SOLVED[name], "stub": stub, "bad": bad}
    verdict = judged(EXERCISES[name], eval(code, names))
    assert verdict.state == state and sentence in verdict.sentence, verdict


def test_no_search_ends_with_two_best_hypotheses() -> None:
    """The docstring gives no order to equal scores, so a function that takes the last one is right too."""
    exercise = EXERCISES["beam_search"]
    last = Mistake("", "return max(scored,", "return max(reversed(scored),")
    assert judged(exercise, exercise.with_mistakes(last)).state == "right"


# A notebook


def test_a_notebook_gets_the_answer_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def causal_mask(n_tokens: int) -> Tensor:
        return torch.ones(n_tokens, n_tokens, dtype=torch.bool).triu(1)

    course.check("causal_mask", causal_mask)
    answer = capsys.readouterr().out
    assert answer.startswith("causal_mask: mistake. The mask has True where a query may NOT attend")
    start(tmp_path)
    path = tmp_path / PACKAGE / "attention.py"
    path.write_text(path.read_text("utf-8") + EXERCISES["causal_mask"].source().replace(".tril()", ".triu(1)"), "utf-8")
    assert str(check(tmp_path, ["causal_mask"])).startswith(answer)
    course.check("causal_mask", SOLVED["causal_mask"])
    assert capsys.readouterr().out == "causal_mask: right.\n"
    with pytest.raises(UserError, match="no exercise 'causal_mas': did you mean causal_mask"):
        course.check("causal_mas", causal_mask)
    result: Any = causal_mask(3)
    with pytest.raises(UserError, match=r"needs your function, not Tensor: give it without parentheses"):
        course.check("causal_mask", result)


# The folder


def written(folder: Path, name: str, old: str = "", new: str = "") -> None:
    """Append a solution, perhaps with a change, to the reader's file: the last definition counts, as in Python."""
    path, source = folder / PACKAGE / EXERCISES[name].file, EXERCISES[name].source()
    assert old in source
    path.write_text(path.read_text("utf-8") + "\n\n" + source.replace(old, new), "utf-8")


def test_a_folder_is_filled_checked_and_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    paths = start(folder)
    assert {path.name for path in paths} == {path.name for path in SOLUTIONS.glob("*.py")}
    with pytest.raises(UserError, match="has all files already: choose another folder"):
        start(folder)
    path = folder / PACKAGE / "attention.py"
    path.unlink()
    assert "attention.py has no causal_mask" in str(check(folder, ["causal_mask"]))
    assert start(folder) == [path], "a missing file is written again"
    with pytest.raises(UserError, match="has no folder mytransformer; glassformer course start"):
        check(tmp_path)
    assert not (tmp_path / PROGRESS).exists()
    progress = check(folder)
    assert progress.n_right == 0 and "empty" not in str(progress)
    assert "causal_mask: empty. It is not written yet." in str(check(folder, ["causal_mask"]))
    stub = path.read_text("utf-8")
    written(folder, "causal_mask", ".tril()", ".triu(1)")
    progress = check(folder, ["causal_mask"])
    assert progress.states["causal_mask"] == "mistake" and "May NOT attend".lower() in str(progress).lower()
    path.write_text(stub, "utf-8")
    written(folder, "causal_mask")
    assert check(folder, ["causal_mask"]).n_right == 1
    assert check(folder, ["split_heads"]).n_right == 1, "the states of the others are kept"
    written(folder, "causal_mask", ".tril()", ".triu()")
    assert check(folder, ["split_heads"]).n_right == 0, "a state belongs to the text of its function"
    written(folder, "causal_mask")
    assert check(folder, ["causal_mask"]).n_right == 1
    (folder / PROGRESS).write_text("{", "utf-8")
    assert check(folder, ["split_heads"]).n_right == 0
    with pytest.raises(UserError, match="no exercise 'causal_mas': did you mean causal_mask"):
        exercise_of("causal_mas")


def test_names_are_exercises_files_and_chapters(tmp_path: Path) -> None:
    start(tmp_path)
    assert {one.name for one in check(tmp_path, ["look.py"]).verdicts} == {
        "capture",
        "weights_of",
        "lens",
        "ablate",
        "patch",
    }
    assert {one.name for one in check(tmp_path, ["11"]).verdicts} == {
        "capture",
        "weights_of",
        "lens",
        "ablate",
        "patch",
    }
    assert [one.name for one in check(tmp_path, ["attention"]).verdicts] == ["attention"]
    for name in ("15", "lens.py"):
        with pytest.raises(UserError, match=r"chapter 15|no exercise 'lens\.py'"):
            check(tmp_path, [name])


def test_all_right_is_the_only_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(tmp_path)
    arguments = ["course", "check", str(tmp_path), "shift", "perplexity"]
    assert run(arguments) == 1
    written(tmp_path, "shift")
    assert run(arguments) == 1
    written(tmp_path, "perplexity")
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["right"], found["exercises"]) == (2, len(EXERCISES))
    assert [one["state"] for one in found["verdicts"]] == ["right", "right"]
    assert run(["course", "hint", "shift", "--more"]) == 0 and run(["course", "case", "shift", "2"]) == 0
    assert "tensor([[3, 7]])" in capsys.readouterr().out


def test_a_part_that_uses_a_wrong_part_names_it(tmp_path: Path) -> None:
    start(tmp_path)
    for name in ("masked_softmax", "attention", "split_heads", "join_heads", "MultiHeadAttention"):
        written(tmp_path, name)
    assert check(tmp_path, ["MultiHeadAttention"]).is_right
    written(tmp_path, "join_heads", "x.transpose(1, 2)", "x.transpose(1, 3).contiguous()")
    sentence = check(tmp_path, ["MultiHeadAttention"]).verdicts[0].sentence
    assert "It uses join_heads, which is not right yet" in sentence
    (tmp_path / PACKAGE / "attention.py").unlink()
    start(tmp_path)
    written(tmp_path, "MultiHeadAttention")
    assert "It calls split_heads, which is not written yet." in str(check(tmp_path, ["MultiHeadAttention"]))


def test_an_edit_of_equal_size_at_the_same_time_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python compares the time and the size of a source with those of its bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    start(folder := tmp_path / "mine")
    path = folder / PACKAGE / "attention.py"
    stub, right = path.read_text("utf-8"), EXERCISES["causal_mask"].source()
    for part, n_right in ((right.replace(".tril()", ".triu()"), 0), (right, 1)):
        path.write_text(stub + "\n" + part, "utf-8")
        os.utime(path, (1, 1))
        assert check(folder, ["causal_mask"]).n_right == n_right


BROKEN = {
    "def causal_mask(:\n": r"attention\.py, line 1: .*; correct it, and check again\.",
    "\nimport nothing_of_this_name\n": r"attention\.py cannot be imported: ModuleNotFoundError: .*\.py, line 2: import",
    "raise SystemExit(3)\n": r"attention\.py cannot be imported: SystemExit: 3\.",
    "name = '\xe9'\n": r"attention\.py.*: .*codec can't decode byte 0xe9.*; correct it, and check again\.",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_that_cannot_be_imported_makes_its_own_functions_wrong(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the relative path that a reader types."""
    monkeypatch.chdir(tmp_path.parent)
    start(tmp_path)
    (tmp_path / PACKAGE / "attention.py").write_text(text, "latin-1")
    written(tmp_path, "mean_loss")
    progress = check(Path(tmp_path.name), ["causal_mask", "gelu", "mean_loss"])
    found = {verdict.name: verdict for verdict in progress.verdicts}
    for name in ("causal_mask", "gelu"):  # block.py imports attention.py
        assert found[name].state == "wrong"
    assert re.match(BROKEN[text], found["causal_mask"].sentence), found["causal_mask"]
    assert "attention.py" in found["gelu"].sentence
    assert found["mean_loss"].state == "right"


# A class


def test_folders_are_graded_each_in_a_process_with_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / name for name in ("ada", "bob", "eve", "ida")]
    for folder in folders:
        start(folder)
        written(folder, "shift")
    written(folders[1], "shift", "ids[:, 1:]", "ids[:, :-1]")
    (folders[2] / PACKAGE / "train.py").write_text("import os\nos._exit(3)\n", "utf-8")
    (folders[3] / PACKAGE / "train.py").write_text("while True:\n    pass\n", "utf-8")
    arguments = ["course", "grade", *map(str, folders), "--only", "shift,perplexity", "--seconds", "20", "--seed", "5"]
    assert run([*arguments, "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["right"] for row in rows] == ["1", "0", "0", "0"]
    assert [row["shift"] for row in rows] == ["right", "mistake", "", ""]
    assert "ended early" in rows[2]["problem"] and "did not end within 20 seconds" in rows[3]["problem"]
    assert not (folders[0] / PROGRESS).exists()
    names = [one.name for one in EXERCISES.values() if one.name != "shift"]
    assert table([Grade("ada", {"shift": "right"}), Grade("bob", {}, "it ended")], {9: ["shift", *names][:3]}) == (
        "folder  right  9\nada     1/3    1/3\nbob     it ended"
    )


@pytest.mark.parametrize("number", range(1, 9))
def test_a_planted_fault_works_and_has_a_story(number: int, tmp_path: Path) -> None:
    """The whole package can be imported, and some exercise is not right; the story names the file."""
    assert len(every_fault()) == 8
    write_broken(number, tmp_path)
    fault = every_fault()[number - 1]
    names = [one.name for one in EXERCISES.values() if one.file == fault.file]
    states = {one.name: one.state for one in check(tmp_path, names).verdicts}
    assert set(states.values()) - {"right", "slow"}, states
    with pytest.raises(UserError, match="exists and is not replaced"):
        write_broken(number, tmp_path)
    with pytest.raises(UserError, match="the numbers 1 to 8, not 9"):
        write_broken(9, tmp_path)


# Solutions equal the package


def test_attention_equals_the_reference() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 4) for n in (5, 7, 7))
    allowed = torch.rand(2, 1, 5, 7) < 0.6
    found = SOLVED["attention"](query, key, value, allowed)
    expected = attention_reference(query, key, value, Mask(pairs=allowed[:, 0]))
    assert_close(found, expected[0])


def test_softmax_and_its_gradient_equal_torch() -> None:
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert_close(SOLVED["softmax"](logits), logits.softmax(-1))
    F.cross_entropy(logits[1:], torch.tensor([3])).backward()
    assert logits.grad is not None
    assert_close(SOLVED["gradient_of_softmax_cross_entropy"](logits[1].detach(), 3), logits.grad[1])


def test_positions_equal_the_package() -> None:
    assert_close(SOLVED["sinusoids"](50, 8), sinusoid(torch.arange(50), 8))
    x, positions = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 4, 90])
    expected = apply_rotary(x, *Rotary(rotary_frequencies(10_000.0, 8))(positions))
    assert_close(SOLVED["rotate"](x, positions), expected)


def test_the_smoothed_loss_and_bleu_equal_torch_and_sacrebleu() -> None:
    from sacrebleu import BLEU

    for arguments in EXERCISES["label_smoothed_loss"].cases():
        logits, labels, smoothing = arguments
        expected = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=smoothing)
        assert_close(SOLVED["label_smoothed_loss"](*arguments), expected)
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    for hypotheses, references in EXERCISES["bleu"].cases():
        texts, wanted = ([" ".join(tokens) for tokens in x] for x in (hypotheses, references))
        expected = metric.corpus_score(texts, [wanted]).score
        assert SOLVED["bleu"](hypotheses, references) == pytest.approx(expected)


def test_searches_equal_those_of_the_package() -> None:
    for arguments in EXERCISES["beam_search"].cases():
        next_log_p, first, end, beam, max_len, alpha = arguments

        def forward(token_ids: Tensor, source_ids: Tensor, of: NextLogP = next_log_p) -> Tensor:
            row = token_ids[0].tolist()
            return torch.stack([of(row[:n]) for n in range(1, len(row) + 1)])[None]

        config = BeamConfig(beam=beam, length_penalty=alpha, max_new_tokens=max_len)
        search = Search(config, start_id=first, end_id=end, max_len=99)
        best = beam_search_reference(forward, torch.tensor([1]), search)[0]
        ids, score = SOLVED["beam_search"](*arguments)
        assert (ids, near(score)) == (best.ids, best.score)
        if beam == 1:
            assert ids == SOLVED["greedy"](next_log_p, first, end, max_len)


def test_masking_equals_the_package_for_the_same_draws() -> None:
    ids, is_special, draws, random_ids, mask_id, rate = EXERCISES["mask_tokens"].cases()[1]
    inputs, labels = SOLVED["mask_tokens"](ids, is_special, draws, random_ids, mask_id, rate)
    row, maskable = ids[0].numpy(), ~is_special[0].numpy()
    chosen = (labels[0] != -100).numpy()
    drawn = [draws[0][0].numpy()[maskable], draws[1][0].numpy()[chosen]]
    replaced = random_ids[0].numpy()[chosen & (draws[1][0].numpy() >= 0.8) & (draws[1][0].numpy() < 0.9)]
    generator = SimpleNamespace(random=lambda n: drawn.pop(0), choice=lambda *_: replaced)
    expected = noise.mask_tokens(row, generator, mask_id=mask_id, replacements=row, maskable=maskable, mask_prob=rate)
    assert (inputs[0].tolist(), labels[0].tolist()) == (expected[0].tolist(), expected[1].tolist())


def test_recurrent_cells_equal_torch() -> None:
    torch.manual_seed(0)
    x, h, c = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    gru, lstm = nn.GRUCell(3, 4), nn.LSTMCell(3, 4)
    assert_close(SOLVED["gru_step"](x, h, dict(gru.named_parameters())), gru(x, h))
    assert_close(SOLVED["lstm_step"](x, h, c, dict(lstm.named_parameters())), lstm(x, (h, c)))


def test_the_loss_and_a_step_of_training_equal_torch() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, -100, 4], [0, -100, -100]])
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert_close(SOLVED["cross_entropy"](logits, labels), expected)
    weight = nn.Parameter(torch.randn(3, 4))
    optimizer = torch.optim.AdamW([weight], lr=0.02, weight_decay=0.3)
    mine, moments = weight.detach().clone(), (torch.zeros(3, 4), torch.zeros(3, 4))
    for step in (1, 2, 3):
        weight.grad = torch.randn(3, 4)
        (gradient,) = SOLVED["clip_gradients"]([weight.grad], 2.0)
        nn.utils.clip_grad_norm_([weight], 2.0)
        assert_close(gradient, weight.grad)
        optimizer.step()
        mine, moments = SOLVED["adamw_step"](mine, gradient, moments, step, 0.02, 0.3)
        assert_close(mine, weight.detach())


def test_the_schedule_equals_the_package() -> None:
    for step in (1, 3, 4, 5, 90):
        found = SOLVED["warmup_then_inverse_root"](step, 4, 0.5)
        assert found == pytest.approx(0.5 * inverse_sqrt(step - 1, 4))


def test_scores_and_context_equal_the_package() -> None:
    torch.manual_seed(0)
    query, memory = torch.randn(3, 2, 6), torch.randn(3, 5, 6)
    dot, general = SingleHeadAttention(6, 6, score="dot"), SingleHeadAttention(6, 6, score="general")
    additive = SingleHeadAttention(6, 6, 4)
    own = additive.state_dict()
    w = {"vector": own["vector"], "query": own["q_proj.weight"].mT, "memory": own["k_proj.weight"].mT}
    pairs = (
        (dot, SOLVED["dot_scores"](query, memory)),
        (general, SOLVED["general_scores"](query, memory, general.state_dict()["k_proj.weight"])),
        (additive, SOLVED["additive_scores"](query, memory, w)),
    )
    is_token = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])
    for package, scores in pairs:
        keys, _ = package.project_memory(memory)
        assert_close(scores, package.scores(package.q_proj(query), keys))
        found, _ = SOLVED["context"](scores, memory, is_token)
        assert_close(found, package(query, memory, is_token)[0])


def test_norms_layers_and_dropout_equal_torch() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 3, 8), torch.randn(8), torch.randn(8)
    assert_close(SOLVED["layer_norm"](x, weight, bias, 1e-3), F.layer_norm(x, (8,), weight, bias, 1e-3))
    assert_close(SOLVED["rms_norm"](x, weight, 1e-3), F.rms_norm(x, (8,), weight, 1e-3))
    assert_close(SOLVED["gelu"](4 * x), F.gelu(4 * x))
    dropped = F.dropout(x, 0.3)
    assert_close(SOLVED["dropout"](x, dropped != 0, 0.3), dropped)


BLOCK = {
    "norm_1": "self_attn_norm.weight",
    "norm_1_bias": "self_attn_norm.bias",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.out_proj.weight",
    "norm_2": "ff_norm.weight",
    "norm_2_bias": "ff_norm.bias",
    "up": "ff.up_proj.weight",
    "up_bias": "ff.up_proj.bias",
    "down": "ff.down_proj.weight",
    "down_bias": "ff.down_proj.bias",
}


def test_the_block_and_its_feed_forward_layer_equal_the_package() -> None:
    torch.manual_seed(0)
    stack = Stack(1, 2, d_ff=12)
    sizes = TransformerConfig(decoder=stack, d_model=8, vocab_size=9, max_len=8, qkv_bias=False, attn_out_bias=False)
    package = build_model(sizes).eval().get_submodule("decoder.blocks.0")
    own = {name: torch.randn_like(value) for name, value in package.state_dict().items()}
    package.load_state_dict(own)
    w = {name: own[key].mT if own[key].dim() == 2 else own[key] for name, key in BLOCK.items()}
    x = torch.randn(2, 4, 8)
    found = SOLVED["feed_forward"](x, w)
    assert_close(found, package.get_submodule("ff")(x), terms=NETWORK)
    allowed = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    found = SOLVED["block"](x, w, allowed, 2)
    assert_close(found, package(x, Inputs(mask=Mask(causal=True))), terms=NETWORK)


def test_sampling_equals_the_package() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    for k in (1, 3, 20):
        assert torch.equal(SOLVED["top_k"](logits, k), sampling.keep_top_k(logits, k))
    for p in (0.0, 0.5, 0.9, 1.0):
        assert torch.equal(SOLVED["top_p"](logits, p), sampling.keep_top_p(logits, p))
    probabilities = SOLVED["with_temperature"](logits, 0.7)
    assert_close(probabilities, sampling.shape_logits(logits, GenerationConfig(temperature=0.7)).softmax(-1))
    for u in (0.0, 0.31, 0.99):
        expected = sampling.draw(probabilities, torch.full((4,), u))
        assert [SOLVED["draw"](row, u) for row in probabilities] == expected.tolist()
    is_token = torch.tensor([[False, False, True, True], [True] * 4])
    assert torch.equal(SOLVED["positions_of"](is_token), positions_from_mask(is_token))


def test_attention_with_a_cache_equals_attention_without() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 7, 4)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    cache, parts = None, []
    for step in (slice(0, 3), slice(3, 4), slice(4, 7)):
        new = (x[:, :, step] for x in (query, key, value))
        part, cache = SOLVED["attend_with_cache"](*new, cache)
        parts.append(part)
    assert_close(torch.cat(parts, dim=2), expected)


def test_damage_is_undone_and_buckets_equal_the_package() -> None:
    for ids, spans, first in EXERCISES["span_corruption"].cases():
        inputs, targets = SOLVED["span_corruption"](ids, spans, first)
        assert restore_spans(inputs, targets, sentinel_ids=range(first, first + len(spans))) == ids
    for distance, n_buckets, max_distance in EXERCISES["relative_bucket"].cases():
        found = SOLVED["relative_bucket"](distance, n_buckets, max_distance)
        assert torch.equal(found, relative_bucket(distance, n_buckets, max_distance, bidirectional=True))


def test_tuning_equals_torch_and_the_package() -> None:
    x, weight, a, b, alpha = EXERCISES["lora"].cases()[0]
    merged = SOLVED["merged_lora"](weight, a, b, alpha)
    assert_close(SOLVED["lora"](x, weight, a, b, alpha), F.linear(x, merged))
    for chosen, rejected, of_chosen, of_rejected, beta in EXERCISES["dpo_loss"].cases():
        logits = beta * (chosen - rejected - of_chosen + of_rejected)
        expected = F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
        found = SOLVED["dpo_loss"](chosen, rejected, of_chosen, of_rejected, beta)
        assert_close(found, expected)
    (rewards,) = EXERCISES["group_advantages"].cases()[0]
    found = SOLVED["group_advantages"](rewards)
    assert_close(found, torch.from_numpy(preference.advantages(rewards.numpy())))
