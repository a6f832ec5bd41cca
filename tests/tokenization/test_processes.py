"""Worker processes give the results of one process, in order; they end with their parent, and report errors."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassformer.common.errors import UserError
from glassformer.tokenization import chunks, processes
from glassformer.tokenization.chunks import count_chunks
from glassformer.tokenization.processes import in_order
from glassformer.tokenization.schemes import Scheme
from glassformer.tokenization.tokenizer import Tokenizer

USER_ERROR = "(_ for _ in ()).throw(__import__('glassformer.common.errors').common.errors.UserError('no such thing'))"


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "n_processors", lambda: 2)


def run(items: list[str] | Iterator[str], pays_from: int = 1) -> Iterator[object]:
    """Evaluate expressions in worker processes; each item has size 1, and the first is evaluated here."""
    return in_order(eval, items, lambda _: 1, pays_from)


def test_results_are_in_order_and_few_items_are_in_flight() -> None:
    drawn = 0

    def expressions() -> Iterator[str]:
        nonlocal drawn
        for drawn in range(1, 41):
            yield f"(__import__('time').sleep({drawn % 3} / 50), print('not a result'), {drawn})[-1]"

    ahead = []
    for done, result in enumerate(run(expressions()), start=1):
        assert result == done
        ahead.append(drawn - done)
    assert max(ahead) == 2 * 2


def test_items_in_flight_are_fewer_if_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_SIZE", 10)
    drawn = 0

    def expressions() -> Iterator[str]:
        nonlocal drawn
        for drawn in range(1, 11):
            yield str(drawn)

    for done in in_order(eval, expressions(), lambda _: 20, 1):
        assert drawn - done <= 1  # 20 for both workers: one item, and the next one


def test_workers_start_only_for_large_inputs_and_do_not_import_torch() -> None:
    here = "(__import__('os').getpid(), 'torch' in __import__('sys').modules)"
    assert {pid for pid, _ in run([here] * 5, pays_from=5)} == {os.getpid()}  # type: ignore[misc]
    (first, *others) = run([here] * 5, pays_from=1)
    assert first[0] == os.getpid() and os.getpid() not in {pid for pid, _ in others}  # type: ignore[index,misc]
    assert not any(has_torch for _, has_torch in others)  # type: ignore[misc]


def test_the_first_error_in_order_is_raised() -> None:
    def expressions(*found: str) -> Iterator[str]:
        yield from found
        raise UserError("this text cannot be read")

    with pytest.raises(UserError, match=r"^no such thing$") as caught:
        list(run(expressions("1", "2", USER_ERROR, "1 / 0")))
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(ZeroDivisionError) as failed:
        list(run(expressions("1", "2", "1 / 0", USER_ERROR)))
    assert "Traceback" in failed.value.__notes__[0]
    results = run(expressions("1", "2", "3"))
    assert [next(results) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(UserError, match="this text cannot be read"):
        next(results)


def test_a_worker_that_ends_early_is_an_error_in_one_sentence() -> None:
    with pytest.raises(UserError, match="ended with exit status 3; is there enough free memory"):
        list(run(["0", *["__import__('os')._exit(3)"] * 20]))


def test_a_consumer_that_stops_leaves_no_process() -> None:
    found = run(["1", *["__import__('os').getpid()"] * 30])
    pids = [next(found) for _ in range(10)][1:]
    found.close()  # type: ignore[attr-defined]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)  # type: ignore[arg-type]


SCRIPT = """
import os, sys
print("once", flush=True)
from glassformer.tokenization import processes
processes.n_processors = lambda: 2
for pid in processes.in_order(eval, ["__import__('os').getpid()"] * 9, lambda _: 1, 1):
    pass
if sys.argv[1:] == ["killed"]:
    for _ in processes.in_order(eval, ["1", *["__import__('time').sleep(0.1)"] * 9], lambda _: 1, 1):
        os.kill(os.getpid(), 9) if _ is None else None
"""


@pytest.mark.parametrize("arguments", [[], ["killed"]])
def test_a_script_without_a_guard_runs_once_and_workers_end_with_it(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, timeout=300, check=False)
    # the workers have the same standard error, so this call returned after their end
    assert (ran.returncode, ran.stdout, ran.stderr) == (-9 if arguments else 0, "once\n", "")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes workers count, for a few lines too."""

    def change() -> None:
        monkeypatch.setattr(chunks, "COUNTED_CHARACTERS", 20_000)
        monkeypatch.setattr(chunks, "PAYS_FROM", 40_000)

    return change


@pytest.mark.parametrize(
    ("scheme", "characters_only"),
    [("byte", False), ("whitespace", False), ("word", False), ("whole_words", False), ("word", True)],
)
def test_counts_of_several_processes_equal_those_of_one(
    scheme: Scheme, characters_only: bool, mixed_lines: list[str], small_parts: Callable[[], None]
) -> None:
    one = count_chunks(mixed_lines, scheme, characters_only=characters_only)
    small_parts()
    assert list(count_chunks(mixed_lines, scheme, characters_only=characters_only).items()) == list(one.items())


def test_a_text_that_no_process_can_count_is_refused(mixed_lines: list[str], small_parts: Callable[[], None]) -> None:
    small_parts()
    with pytest.raises(UserError, match="lone surrogate, U\\+D801 at character 1"):
        count_chunks([*mixed_lines, "a\ud801"], "byte")


def test_a_tokenizer_learned_by_several_processes_is_the_same(
    mixed_lines: list[str], small_parts: Callable[[], None]
) -> None:
    one = Tokenizer.train(mixed_lines, vocab_size=600).to_json()
    small_parts()
    assert Tokenizer.train(mixed_lines, vocab_size=600).to_json() == one
