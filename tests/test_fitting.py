"""Steps and measurements in parts give the results of whole batches. Tests plant the error of the allocator."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from configs import CONFIGS, random_model
from glassformer.common.errors import Interrupted, Note, UserError
from glassformer.config.run import BeamConfig
from glassformer.cost.room import Room, least_memory, way_that_fits
from glassformer.data.batching import NOT_SCORED, Batch, Example
from glassformer.evaluation.loss import Division, evaluate_loss, masked_scores, pseudo_perplexity
from glassformer.inference.beam import decode_sorted
from glassformer.inference.classify import embed, predict
from glassformer.inference.score import continuation_scores, forced_scores
from glassformer.inference.search import Search
from glassformer.models.devices import Fit, InParts, doubled, fitted, split
from glassformer.models.stacks import Decoder
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.classification import RegressionObjective
from glassformer.objectives.loss import LossSums
from glassformer.objectives.noise import MaskedObjective
from glassformer.store import checkpoint
from glassformer.store.model_directory import read_run
from glassformer.tokenization.vocabulary import WordBoundaries
from glassformer.training.distributed.process_group import ProcessGroup
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.replay import replay_run
from glassformer.training.run import resume_run, train_run
from glassformer.training.trainer_state import read_progress
from runs import MODEL, Recording, metrics, signal_at, tiny_run, write_text
from tolerances import assert_same_steps, near


def full() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@contextmanager
def room_for(n_rows: int, monkeypatch: pytest.MonkeyPatch, first: int = 0) -> Iterator[list[int]]:
    """Fail in every embedding of more than `n_rows` rows; when training, from its micro-batch number `first` on.

    The list that is yielded gets the number of rows of each training forward.
    """
    sizes: list[int] = []
    embedding = F.embedding

    def limited(ids: Tensor, *args: Any, **settings: Any) -> Tensor:
        if ids.dim() < 2:  # positions without rows
            return embedding(ids, *args, **settings)
        if torch.is_grad_enabled():
            sizes.append(len(ids))
        if len(ids) > n_rows and (not torch.is_grad_enabled() or len(sizes) > first):
            raise full()
        return embedding(ids, *args, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(F, "embedding", limited)
        yield sizes


def weights(folder: Path, step: int) -> dict[str, Tensor]:
    return load_file(checkpoint.weights_path(checkpoint.path_of(folder, step)))


def events(folder: Path) -> list[str]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line["event"] for line in lines if "event" in line]


# The parts


def test_parts_are_consecutive_and_nearly_equal() -> None:
    assert split(range(7), 3) == [range(3), range(3, 5), range(5, 7)]
    assert split("abc", 1) == ["abc"] and split([1, 2], 8) == [[1], [2]]


def test_the_number_of_parts_doubles_up_to_the_most() -> None:
    tried: list[int] = []

    def work(n: int) -> str:
        tried.append(n)
        if n < 5:
            raise MemoryError
        return "done"

    assert fitted(work, doubled(1, 6)) == ("done", 6) and tried == [1, 2, 4, 6]
    with pytest.raises(MemoryError):
        fitted(work, doubled(1, 4))


def test_another_error_is_raised_at_once() -> None:
    def work(n: int) -> None:
        tried.append(n)
        raise RuntimeError("shapes differ")

    tried: list[int] = []
    with pytest.raises(RuntimeError, match="shapes differ"):
        fitted(work, doubled(1, 8))
    assert tried == [1]


def test_a_failed_attempt_keeps_no_tensor() -> None:
    """The traceback of the first attempt would keep its tensors until the second one has ended."""
    alive: list[int] = []

    class Large:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def work(n: int) -> int:
        before = len(alive)
        large = Large()
        if n == 1:
            raise full()
        del large
        return before

    assert fitted(work, [1, 2]) == (0, 2)


def test_later_batches_are_computed_in_as_many_parts_and_one_note_is_given() -> None:
    in_parts, sizes = InParts(), []

    def work(items: Any) -> int:
        sizes.append(len(items))
        if len(items) > 2:
            raise full()
        return sum(items)

    with pytest.warns(Note, match="batches are now computed in 4 parts") as notes:
        assert in_parts(range(6), work) == [1, 2, 7, 5]
        assert in_parts(range(4), work) == [0, 1, 2, 3]
    assert len(notes) == 1 and sizes == [6, 3, 2, 1, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("n_parts", [1, 2, 3, 5])
def test_rows_of_a_batch_have_its_labels_targets_and_positions(n_parts: int) -> None:
    draw = np.random.default_rng(0)
    examples = [Example(draw.integers(5, 30, size=n)) for n in (4, 9, 2, 7, 7)]
    edges = WordBoundaries(*np.zeros((4, 31), bool))
    masked = MaskedObjective(mask_id=30, edges=edges).collate(examples, draw)
    parts = [masked.rows(rows) for rows in split(range(5), n_parts)]
    assert sum(part.n_targets for part in parts) == masked.n_targets
    for part in parts:
        assert part.loss_positions is not None
        assert torch.equal(part.loss_positions, (part.labels.flatten() != NOT_SCORED).nonzero().squeeze(1))
    for name, whole in masked.tensors().items():
        if name != "loss_positions":
            assert torch.equal(torch.cat([part.tensors()[name] for part in parts]), whole)


def test_every_number_is_a_target() -> None:
    batch = RegressionObjective().collate([Example(np.array([1]), label=x) for x in (-100.0, 2.0)], None)  # type: ignore[arg-type]
    assert batch.rows(range(1)).n_targets == 1


# Measurements

ROWS = [[3, 1, 4, 9], [5, 2], [9, 2, 6, 5, 3, 5, 8], [8, 9, 1], [5, 7, 7], [1, 4]]
EXAMPLES = [Example(np.array(row)) for row in ROWS]


def causal_loss() -> tuple[float, int]:
    report = evaluate_loss(
        random_model("gpt"), CausalObjective(), [EXAMPLES[:4], EXAMPLES[4:]], torch.device("cpu")
    ).report()
    return report.loss, report.n_tokens


def masked() -> tuple[MaskedObjective, nn.Module]:
    bert = CONFIGS["bert"]
    edges = WordBoundaries(*np.zeros((4, bert.vocab_size), bool))
    return MaskedObjective(mask_id=0, edges=edges, mask_prob=0.5), random_model("bert")


def masked_accuracy() -> tuple[float, ...]:
    objective, network = masked()
    return tuple(masked_scores(network, objective, [EXAMPLES], "cpu").values())  # type: ignore[arg-type]


def pseudo() -> float:
    objective, network = masked()
    return pseudo_perplexity(network, objective, [EXAMPLES], "cpu")  # type: ignore[arg-type]


def labels() -> list[float]:
    return [x for row in predict(random_model("classifier_mean"), EXAMPLES) for x in row.tolist()]


def vectors() -> list[float]:
    found = [embed(random_model(name), EXAMPLES) for name in ("vectors_mean", "bert")]  # type: ignore[arg-type]
    return [float(x) for x in np.concatenate(found).ravel()]


def continuations() -> list[float]:
    found = continuation_scores(random_model("gpt"), [[3], *ROWS[1:]], ROWS)
    return [x for log_probs in found for x in log_probs]


def targets() -> list[float]:
    found = forced_scores(random_model("paper"), ROWS, ROWS, start_id=1)
    return [x for log_probs in found for x in log_probs]


def translations() -> list[float]:
    found = decode_sorted(random_model("paper"), ROWS, Search(BeamConfig(2), 1, 2, 12))
    return [x for hypotheses in found for one in hypotheses for x in (*one.ids, one.log_prob)]


@pytest.mark.parametrize(
    "measured",
    [causal_loss, masked_accuracy, pseudo, labels, vectors, continuations, targets, translations],
)
def test_a_measurement_in_parts_equals_that_of_whole_batches(
    measured: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = measured()
    with room_for(2, monkeypatch), pytest.warns(Note, match="a batch did not fit in memory"):
        assert measured() == near(expected)
    with room_for(0, monkeypatch), pytest.raises(torch.OutOfMemoryError):
        measured()


def test_a_loss_that_couples_rows_and_sharded_weights_are_never_split(monkeypatch: pytest.MonkeyPatch) -> None:
    class Coupled(CausalObjective):
        couples_rows = True

    class Sharded(Division):
        holds_parts = True

    device = torch.device("cpu")
    with room_for(2, monkeypatch):
        for objective, division in ((Coupled(), Division()), (CausalObjective(), Sharded())):
            with pytest.raises(torch.OutOfMemoryError):
                evaluate_loss(random_model("gpt"), objective, [EXAMPLES], device, division=division)


# Training


def train(folder: Path, name: str = "run", dropout: float = 0.0, **settings: Any) -> tuple[Path, Recording]:
    """Train for 6 steps of 2 micro-batches of 4 rows."""
    defaults: dict[str, Any] = {"batch_size": 4, "grad_accumulation": 2, "max_steps": 6, "eval_every": 3}
    run = tiny_run(write_text(folder, 60), model=replace(MODEL, residual_dropout=dropout), **(defaults | settings))
    reporter = Recording()
    train_run(run, folder / name, reporter)
    return folder / name, reporter


@pytest.mark.parametrize("n_rows", [3, 1])
def test_pitfall_19_a_step_in_parts_gives_the_weights_of_whole_micro_batches(
    n_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = train(tmp_path, "whole")
    n_parts = 2 if n_rows == 3 else 4
    with room_for(n_rows, monkeypatch, first=4):  # the third step, and the evaluations
        split_up, reporter = train(tmp_path, "split")
    for name, expected in weights(whole, 6).items():
        assert_same_steps(weights(split_up, 6)[name], expected, n_steps=6, rate=1e-3)
    said = f"step 3 did not fit in memory: each micro-batch is computed in {n_parts} parts; the result is the same"
    message, *of_evaluations = [message for message in reporter.messages if "did not fit" in message]
    assert of_evaluations and all(note.startswith("a batch did not fit in memory") for note in of_evaluations)
    assert message.startswith(said) and events(split_up) == [message]
    assert read_progress(checkpoint.path_of(split_up, 6)).n_parts == n_parts
    assert read_progress(checkpoint.path_of(whole, 6)).n_parts == 1


@pytest.mark.filterwarnings("ignore::glassformer.common.errors.Note")  # of the evaluations
@pytest.mark.parametrize("settings", [{}, {"ema_decay": 0.9, "activation_checkpointing": True}, {"precision": "bf16"}])
def test_a_resumed_run_has_the_parts_and_the_bits_of_one_without_interruption(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout is on. Step 2 is the first that does not fit; the run is interrupted after step 3."""
    with room_for(3, monkeypatch, first=2):
        whole, _ = train(tmp_path, "whole", dropout=0.2, **settings)
    with room_for(3, monkeypatch, first=2), monkeypatch.context() as patch:
        signal_at(patch, 3)
        with pytest.raises(Interrupted):
            train(tmp_path, "resumed", dropout=0.2, **settings)
    assert read_progress(checkpoint.path_of(tmp_path / "resumed", 4)).n_parts == 2
    with room_for(3, monkeypatch) as sizes:
        resume_run(tmp_path / "resumed", Recording())
        assert replay_run(whole, Recording()).differing == []
    assert set(sizes) == {2}, "the resumed run computes whole micro-batches again"
    assert metrics(whole) == metrics(tmp_path / "resumed")
    for name, expected in weights(whole, 6).items():
        assert torch.equal(weights(tmp_path / "resumed", 6)[name], expected), name


@pytest.mark.filterwarnings("ignore::glassformer.common.errors.Note")
def test_below_one_row_the_error_has_advice_and_checkpoints_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with room_for(0, monkeypatch, first=8) as sizes, pytest.raises(UserError) as error:
        train(tmp_path, eval_every=6, checkpoint_every=2)
    assert sizes[8:] == [4, 2, 1, 1], "the step is not computed in halves down to one row, then with recomputation"
    text = str(error.value)
    assert text.startswith("not enough memory for another 2.0 GiB at step 5: lower train.batch_size (now 4)")
    assert "activation_checkpointing" not in text, "it was tried"
    assert checkpoint.steps(tmp_path / "run") == [2, 4] and events(tmp_path / "run") == []


def nan_in_call(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give NaN in the training forward with this number, counted from 1 without those that do not fit."""
    loss, n_calls = CausalObjective.loss, 0

    def bad(self: CausalObjective, model: nn.Module, batch: Batch) -> LossSums:
        nonlocal n_calls
        sums = loss(self, model, batch)
        n_calls += torch.is_grad_enabled()
        is_bad = torch.is_grad_enabled() and n_calls == number
        return LossSums(sums.total, sums.nats * torch.nan, sums.n_targets) if is_bad else sums

    monkeypatch.setattr(CausalObjective, "loss", bad)


@pytest.mark.filterwarnings("ignore::glassformer.common.errors.Note")
def test_a_loss_of_nan_in_a_part_is_of_its_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second part of the second micro-batch of step 2 has a loss of NaN: the whole micro-batch is kept."""
    nan_in_call(8, monkeypatch)
    with room_for(2, monkeypatch):
        folder, _ = train(tmp_path, on_nonfinite="skip")
    first, second = events(folder)
    assert first.startswith("step 1 did not fit in memory")
    assert second.startswith("the loss is nan in step 2") and second.endswith("skipped, the weights are unchanged")
    [kept] = folder.glob("*step-2.safetensors")
    assert len(load_file(kept)["token_ids"]) == 4


@pytest.mark.filterwarnings("ignore::glassformer.common.errors.Note")
def test_a_rollback_keeps_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 2 does not fit, and step 3 has a NaN: the run is back before step 1, where it had whole micro-batches."""
    nan_in_call(7, monkeypatch)
    with room_for(3, monkeypatch, first=2) as sizes:
        train(tmp_path, on_nonfinite="rollback", max_steps=4)
    assert sizes == [4, 4, 4] + [2] * 4 * (2 + 4)


def test_a_run_starts_with_the_parts_that_the_estimate_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    least = least_memory(tiny_run(tmp_path, batch_size=2), on_cpu=True).total
    small = Room("this machine", least, least, is_cpu=True)
    with monkeypatch.context() as patch, room_for(1000, monkeypatch) as sizes:
        patch.setattr("glassformer.training.run.room_of", lambda device: small)
        folder, reporter = train(tmp_path, batch_size=4, max_steps=2, activation_checkpointing=False)
    assert len(set(sizes)) == 1 and read_progress(checkpoint.path_of(folder, 2)).n_parts == 4 // sizes[0] > 1
    [message] = [message for message in reporter.messages if "by estimate" in message]
    assert message.startswith("a step does not fit in memory, by estimate: each micro-batch is computed in ")


# Activation checkpointing


@contextmanager
def decoder_without_room(monkeypatch: pytest.MonkeyPatch, first: int) -> Iterator[list[tuple[int, bool]]]:
    """Fail in every training forward without activation checkpointing, from number `first` on.

    The list that is yielded gets the number of rows of each training forward, and True with activation checkpointing.
    """
    forward, tried = Decoder.forward, []

    def limited(self: Decoder, token_ids: Tensor, *args: Any, **settings: Any) -> Tensor:
        if self.training:
            tried.append((len(token_ids), self.activation_checkpointing))
            if len(tried) > first and not self.activation_checkpointing:
                raise full()
        return forward(self, token_ids, *args, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "forward", limited)
        yield tried


def is_recorded(folder: Path, step: int, reporter: Recording, words: str) -> None:
    """Check the message and the checkpoint of a run that switched on activation checkpointing."""
    [message] = [message for message in reporter.messages if "activation checkpointing" in message]
    assert message.startswith(words)
    assert read_progress(checkpoint.path_of(folder, step)).recomputes
    assert read_run(folder).train.activation_checkpointing == "auto"


def test_a_run_whose_single_rows_do_not_fit_starts_with_activation_checkpointing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By estimate; the weights are those of other runs, and a resumed run does the same."""
    whole, _ = train(tmp_path, "whole", dropout=0.2)
    run = read_run(whole)
    row = least_memory(run, on_cpu=True, fit=Fit(4)).total
    few = Room("this machine", row - 1, row - 1, is_cpu=True)
    fit = way_that_fits(run, few)
    assert fit.recomputes
    with monkeypatch.context() as patch:
        patch.setattr("glassformer.training.run.room_of", lambda device: few)
        signal_at(patch, 3)
        reporter = Recording()
        with pytest.raises(Interrupted):
            train_run(run, tmp_path / "few", reporter)
    is_recorded(tmp_path / "few", 4, reporter, "a single row does not fit in memory, by estimate: activation checkp")
    with decoder_without_room(monkeypatch, first=0) as tried:
        resume_run(tmp_path / "few", Recording())
    assert set(tried) == {(4 // fit.n_parts, True)}
    if fit.n_parts == 1:  # otherwise, the masks of dropout differ
        for name, expected in weights(whole, 6).items():
            assert torch.equal(weights(tmp_path / "few", 6)[name], expected), name


@pytest.mark.parametrize(("setting", "every"), [("auto", 1), ("half", 2), ("false", 0)])
def test_a_resumed_run_recomputes_the_blocks_that_its_setting_names(
    setting: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start that did not fit and recomputed all blocks."""
    with monkeypatch.context() as patch:
        patch.setattr("glassformer.training.run.way_that_fits", lambda run, room: Fit(1, recomputes=True))
        signal_at(patch, 3)
        with pytest.raises(Interrupted):
            train(tmp_path)
    reporter = Recording()
    with decoder_without_room(monkeypatch, first=100) as tried:
        resume_run(tmp_path / "run", reporter, {"train.activation_checkpointing": setting})
    assert {recomputed for _, recomputed in tried} == {every}
    assert read_progress(checkpoint.path_of(tmp_path / "run", 6)).recomputes == (setting == "auto")
    assert not [line for line in reporter.messages if "not bit for bit" in line]


def test_rows_that_do_not_fit_switch_on_activation_checkpointing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From step 3 on, the blocks of no batch fit: parts are tried first, down to single rows."""
    whole, _ = train(tmp_path, "whole")
    with decoder_without_room(monkeypatch, first=4) as tried:
        folder, reporter = train(tmp_path, "few")
        assert tried[4:8] == [(4, False), (2, False), (1, False), (1, True)] and set(tried[8:]) == {(1, True)}
        is_recorded(folder, 6, reporter, "step 3 did not fit in memory: activation checkpointing is on and each micro")
        tried.clear()
        assert replay_run(folder, Recording()).differing == [] and set(tried) == {(1, True)}
        tried.clear()
        with pytest.raises(
            UserError, match=r"for another 2.0 GiB at step 3: .*set train.activation_checkpointing to true"
        ):
            train(tmp_path, "off", activation_checkpointing=False)
    for name, expected in weights(whole, 6).items():
        assert_same_steps(weights(folder, 6)[name], expected, n_steps=6, rate=1e-3)


def test_several_processes_cannot_repeat_a_step() -> None:
    assert Ranks().repeats_steps and not ProcessGroup.repeats_steps
