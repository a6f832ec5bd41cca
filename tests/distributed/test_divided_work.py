"""Several processes: work that rank 0 does for all, work that is divided, and errors of one process."""

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from faults.children import done, ranks_done, wait_until
from glassformer import api
from glassformer.common import files
from glassformer.common.errors import UserError, warn
from glassformer.config.run import LabelData, MaskedConfig, PairData, Run
from glassformer.config.train import ParallelConfig, TrainConfig
from glassformer.data.corpus import Corpus
from glassformer.data.split import RecordCorpus
from glassformer.data.tokens import TokenCache, TokenSplits, prepare
from glassformer.evaluation import loss
from glassformer.evaluation.loss import ALONE, Division, evaluate_loss
from glassformer.evaluation.pairs import PairScores
from glassformer.inference import beam, classify
from glassformer.models.devices import evaluation_mode
from glassformer.objectives.loss import Objective
from glassformer.tasks.batches import Places
from glassformer.tasks.text_data import TextRunData
from glassformer.tasks.translation import GREEDY
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.distributed import process_group
from glassformer.training.distributed import process_group as joining
from glassformer.training.distributed.process_group import processes, watchdog_note
from runs import label_run, pair_run, text_corpus, text_run_of, tiny_run, write_text

CPU = torch.device("cpu")
TWO, SMALL = TrainConfig(grad_accumulation=2), {"batch_tokens": 32}
RUNS: dict[str, Callable[[Path], Run]] = {
    "text": lambda folder: tiny_run(write_text(folder), grad_accumulation=2),
    "masked": lambda folder: text_run_of(folder, MaskedConfig(), grad_accumulation=2),
    "pairs": lambda folder: pair_run(folder, grad_accumulation=2, data=SMALL),
    "classes": lambda folder: label_run(folder, grad_accumulation=2, data=SMALL),
    "tags": lambda folder: label_run(folder, "tags", grad_accumulation=2, data=SMALL),
}


def count_calls(patch: pytest.MonkeyPatch, calls: Counter[str]) -> None:
    """Count the expensive work of a large run: hashes by file name, learning, and reading whole texts."""
    real, train = files.sha256, Tokenizer.train.__func__  # type: ignore[attr-defined]

    def hashed(path: Path) -> str:
        calls[path.name] += 1
        return real(path)

    def learned(cls: type[Tokenizer], *args: Any, **options: Any) -> Tokenizer:
        calls["learn"] += 1
        return train(cls, *args, **options)

    patch.setattr(files, "sha256", hashed)
    patch.setattr(Tokenizer, "train", classmethod(learned))
    scan = Corpus._scan
    patch.setattr(Corpus, "_scan", lambda self, paths: (calls.update(["scan"]), scan(self, paths))[1])
    for corpus in (Corpus, RecordCorpus):
        digest = corpus.__dict__["digest"]
        compute = digest.func
        patch.setattr(digest, "func", lambda self, compute=compute: (calls.update(["digest"]), compute(self))[1])


@pytest.mark.parametrize("name", ["text", "pairs", "classes"])
def test_only_rank_0_learns_the_tokenizer_and_hashes_the_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RUNS[name](tmp_path)
    run = replace(run, train=replace(run.train, max_steps=1, eval_every=1), parallel=ParallelConfig(timeout=60))

    def counted(work: Callable[[], object], name: str) -> None:
        calls: Counter[str] = Counter()
        count_calls(monkeypatch, calls)
        work()
        (tmp_path / f"{name}-{os.environ['RANK']}").write_text(json.dumps(calls))

    large = {"text": ("text.txt", "train.bin", "valid.bin"), "pairs": ("train.source.bin", "train.target.bin")}
    for verb, work in (
        ("train", lambda: api.train(run, tmp_path / "run")),
        ("resume", lambda: api.resume(tmp_path / "run")),
    ):
        assert ranks_done(2, lambda verb=verb, work=work: counted(work, verb)) == [0, 0]  # type: ignore[misc]
        first, other = (json.loads((tmp_path / f"{verb}-{rank}").read_text()) for rank in (0, 1))
        for expensive in ("digest", *large.get(name, ())):
            assert first[expensive], "it was not counted"
            assert expensive not in other
        assert first.get("learn", 0) == (verb == "train")
        assert "learn" not in other and "scan" not in other


def test_without_hashes_only_sizes_of_the_cache_are_compared(tmp_path: Path) -> None:
    corpus, tokenizer = text_corpus(write_text(tmp_path)), Tokenizer.train(["abc"], vocab_size=0, special_tokens=())

    def prepared(**options: Any) -> TokenSplits:
        return prepare(corpus, tokenizer, TokenCache(tmp_path / "cache", **options))

    ids = prepared().train.ids.tolist()
    path = prepared().folder / "train.bin"
    path.write_bytes(path.read_bytes() + b"\0\0")
    assert prepared(checks_hashes=False).train.ids.tolist() == ids
    starts = path.with_suffix(".starts")
    starts.write_bytes(b"\1" + starts.read_bytes()[1:])
    assert prepared(checks_hashes=False).train.document_starts.tolist() == [0]
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    assert prepared(checks_hashes=False).train.ids.tolist() != ids, "sizes alone are compared"
    assert prepared().train.ids.tolist() == ids


@pytest.mark.parametrize("place", ["tokenizers", "prepare"])
def test_an_error_of_rank_0_ends_the_other_processes(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 fails and its process stays alive, as under a launcher that does not end the others."""
    run = replace(RUNS["text"](tmp_path), parallel=ParallelConfig(timeout=60))

    def fails(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("of the first process")

    def work() -> None:
        ended = tmp_path / "ended"
        if os.environ["RANK"] == "0":
            monkeypatch.setattr(TextRunData, place, fails)
            with pytest.raises(ZeroDivisionError):
                api.train(run, tmp_path / "run")
            wait_until(ended.exists)
            return
        with pytest.raises(UserError, match="process 1 of 2 stops because process 0 failed; see its error"):
            api.train(run, tmp_path / "run")
        ended.touch()

    assert ranks_done(2, work) == [0, 0]


def test_the_wait_for_rank_0_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(RUNS["text"](tmp_path), parallel=ParallelConfig(timeout=60))
    monkeypatch.setattr(process_group, "PREPARE_S", 1.0)  # the processes are forks
    tokenizers, ended = TextRunData.tokenizers, tmp_path / "ended"

    def slow(*args: Any) -> Any:
        wait_until(ended.exists)
        return tokenizers(*args)

    def work() -> None:
        if os.environ["RANK"] == "0":
            monkeypatch.setattr(TextRunData, "tokenizers", slow)
            with pytest.raises((UserError, RuntimeError)):
                api.train(run, tmp_path / "run")
            wait_until(ended.exists)  # this process has the store, and may have waited less than the other
            return
        with pytest.raises(UserError, match=r"process 1 of 2 waited 1 s .*check the log of process 0"):
            api.train(run, tmp_path / "run")
        ended.touch()

    assert ranks_done(2, work) == [0, 0]


def measured(folder: Path, division: Division) -> tuple[dict[str, Any], int, int]:
    """Return the loss and scores of a model, the number of batches, and the number that this process computed."""
    model = api.load(folder)
    measure = model.trainable_task.evaluation(model, Places(), warn)
    n_own, compute = 0, measure.objective.loss

    def counted(*args: Any) -> Any:
        nonlocal n_own
        n_own += 1
        return compute(*args)

    object.__setattr__(measure.objective, "loss", counted)  # also of a frozen dataclass
    n_batches = len(list(measure.batches()))
    with evaluation_mode(model.network):
        report = evaluate_loss(model.network, measure.objective, measure.batches(), CPU, division=division).report()
        found = report.to_dict()
        data = model.run.data
        if isinstance(data, PairData):
            found |= PairScores(data).of_translator(model.translator, measure.records, GREEDY, division=division)
        if isinstance(data, LabelData):
            task: Any = model.task
            scores = task.measure(model.run, model.network, measure.records, model.labels, CPU, division)
            found |= {name: value for name, value in scores.items() if name != "report"}
    return found, n_batches, n_own


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tiny data give several batches."""
    monkeypatch.setattr(loss, "MAX_TOKENS", 64)
    monkeypatch.setattr(classify, "BATCH_TOKENS", 32)
    monkeypatch.setattr(beam, "MAX_TOKENS", 40)


@pytest.mark.parametrize("name", RUNS)
def test_a_divided_evaluation_equals_one_process_to_the_bit(name: str, tmp_path: Path, small_batches: None) -> None:
    run = RUNS[name](tmp_path)
    assert done(lambda: api.train(run, tmp_path / "run")) == 0

    def one() -> None:
        found, n_batches, n_own = measured(tmp_path / "run", ALONE)
        assert n_own == n_batches >= 3, "too few batches to divide"
        (tmp_path / "found").write_text(json.dumps(found))

    def of_two() -> None:
        with processes(ParallelConfig(timeout=60), TWO, CPU) as ranks:
            found, n_batches, n_own = measured(tmp_path / "run", ranks)
            assert n_own == len(range(ranks.rank, n_batches, 2)) < n_batches
            assert json.loads(json.dumps(found)) == json.loads((tmp_path / "found").read_text())

    assert done(one) == 0
    assert ranks_done(2, of_two) == [0, 0]


class StandIn:
    """A batch of one row, without tensors."""

    n_rows = n_targets = 1

    def to(self, device: torch.device) -> "StandIn":
        return self

    def rows(self, part: range) -> "StandIn":
        return self


@pytest.mark.parametrize("n_batches", range(1, 8))
def test_processes_with_parts_run_equally_many_forwards(n_batches: int) -> None:
    """Each forward gathers weights from all processes: if one had no batch left, the others would wait."""

    class Parts(Division):
        n, holds_parts, n_forwards = 3, True, 0

    class Counting(Objective):
        def collate(self, examples: Any, rng: Any) -> Any:
            return StandIn()

        def loss(self, model: Any, batch: Any) -> Any:
            model.n_forwards += 1
            return type("Sums", (), {"nats": torch.tensor(1.0), "total": torch.tensor(1.0), "n_targets": 1})()

    counts = []
    for rank in range(3):
        part = Parts()
        part.rank, batches = rank, [[] for _ in range(n_batches)]
        part.sum = lambda *numbers: [1.0] * len(numbers)  # type: ignore[method-assign]
        evaluate_loss(part, Counting(), batches, torch.device("cpu"), division=part)
        counts.append(part.n_forwards)
    assert counts == [-(-n_batches // 3)] * 3


def test_divided_sums_are_added_in_the_order_of_the_batches() -> None:
    """Sums per process would round differently: 1e16 + 1 - 1e16 is 0 in order, and 1 when 1e16 - 1e16 comes first."""

    class Second(Division):
        rank, n = 1, 2

        def sum(self, *numbers: float) -> list[float]:
            of_first = [1e16, 1e16, 1, 0, 0, 0, -1e16, -1e16, 1]
            return [a + b for a, b in zip(numbers, of_first, strict=True)]

    class Smoothed(Objective):
        label_smoothing = 0.1

        def collate(self, examples: Any, rng: Any) -> Any:
            return StandIn()

        def loss(self, model: Any, batch: Any) -> Any:
            return loss_sums(1.0)

    def loss_sums(value: float) -> Any:
        return type("Sums", (), {"nats": torch.tensor(value), "total": torch.tensor(value), "n_targets": 1})()

    report = evaluate_loss(None, Smoothed(), [[], [], []], CPU, division=Second()).report()  # type: ignore[arg-type]
    assert (report.loss, report.smoothed_loss, report.n_tokens) == (0.0, 0.0, 3)


# Errors of NCCL after a lost process


@pytest.mark.parametrize(
    "message",
    [
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) "
        "ran for 6014 milliseconds before timing out.",
        "NCCL communicator was aborted on rank 0.",
        "NCCL error in: ProcessGroupNCCL.cpp:1234, remote process exited or there was a network error, NCCL 2.27"
        "\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ],
)
def test_an_error_of_nccl_is_one_sentence_with_the_resume_command(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(joining, "_join", lambda *args: None)
    monkeypatch.setattr(process_group.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(process_group.dist, "get_world_size", lambda: 2)
    with (
        pytest.raises(
            UserError, match=r"process 0 of 2 lost another process.* continue with glassformer resume$"
        ) as error,
        processes(ParallelConfig(), TWO, CPU),
    ):
        raise dist.DistBackendError(message)
    assert "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match="invalid usage"), processes(ParallelConfig(), TWO, CPU):
        raise RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1234, invalid usage")


def test_a_note_before_nccl_training_has_the_resume_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda, folder = torch.device("cuda", 0), tmp_path / "a run"
    assert watchdog_note(ParallelConfig(timeout=7), cuda, folder) is None, "a single process"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert watchdog_note(ParallelConfig(timeout=7), CPU, folder) is None, "gloo raises errors"
    note = watchdog_note(ParallelConfig(timeout=7), cuda, folder)
    assert note is not None and "after 7 s" in note and note.endswith(f"glassformer resume '{folder}'")
