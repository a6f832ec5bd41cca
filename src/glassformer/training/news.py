"""The messages of a run before its first step: sizes, what it goes on from, what to know about processes."""

from pathlib import Path

from glassformer.config.run import Run
from glassformer.devices import repeats_bits
from glassformer.distributed.processes import watchdog_note
from glassformer.store import checkpoint
from glassformer.tasks.training_data import TrainingData, few_targets
from glassformer.tokenization.tokenizer import Tokenizers
from glassformer.training.host import Host
from glassformer.training.machine import differences
from glassformer.training.trainer_state import TrainerState


def tell_of_new_run(
    run: Run, n_parameters: int, summary: str, tokenizers: Tokenizers, data: TrainingData, host: Host
) -> None:
    """How large the model is, where it is trained, and what on; `summary` is that of its data."""
    vocabulary = _vocabulary(run, tokenizers)
    host.reporter.log(f"{run.name}: {n_parameters:,} parameters on {host}; {summary}, {vocabulary}")
    for sentence in few_targets(data):
        host.reporter.log(sentence)


def tell_of_resumed_run(run: Run, stored: Path, progress: TrainerState, host: Host) -> None:
    """Where it goes on, and whether to the bit."""
    if other := changed_machine(stored, progress):
        host.reporter.log(f"the run was made with {'; '.join(other)}: it goes on equal to rounding, not to the bit")
    if not repeats_bits(run.train, host.device):
        host.reporter.log(f"on {host.device.type} without train.deterministic a run goes on equal to rounding")
    done = progress.finished or progress.step >= run.train.max_steps
    told = ": nothing is left to do" if done else ""
    host.reporter.log(f"resumed at step {progress.step} of {run.train.max_steps}{told}")


def tell_of_watchdog(run: Run, folder: Path, host: Host) -> None:
    """What PyTorch will do should a process be lost, where it does something."""
    if (note := watchdog_note(run.parallel, host.device, folder)) is not None:
        host.reporter.log(note)


def changed_machine(stored: Path, progress: TrainerState) -> list[str]:
    """What a checkpoint was made with that is otherwise here, in words."""
    return differences(checkpoint.load_numbers(stored).get("made_with", {}), progress.made_with)


def _vocabulary(run: Run, tokenizers: Tokenizers) -> str:
    """The sizes of the vocabularies, and that there are fewer tokens than were asked for."""
    asked = 0 if run.init.path is not None or run.tokenizer.path is not None else run.tokenizer.vocab_size
    target, source = tokenizers.target, tokenizers.separate_source
    fewer = f" (the text gives no {asked:,})" if target.vocab_size < asked else ""
    of_source = "" if source is None else f", of the source {source.vocab_size:,}"
    return f"vocabulary {target.vocab_size:,}{fewer}{of_source}"
