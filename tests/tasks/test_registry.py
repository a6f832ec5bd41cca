"""Every kind of objective has a task, and another package may add one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glassformer.common.errors import UserError
from glassformer.config.extensions import own_members
from glassformer.config.run import ObjectiveConfig, Run, TextData
from glassformer.tasks import task as registry
from glassformer.tasks.requirements import BUILT_IN, LABELLED
from glassformer.tasks.task import Task, TrainableTask, task_of, task_of_kind, trainable_task
from glassformer.training.checks import check_new_run
from runs import write_text

TALKS = {"adapted", "writer", "scores"}
ABILITIES: dict[str, set[str]] = {
    "causal": {"writer"},
    "masked": {"adapted", "scored_share", "filler", "scores", "pseudo_perplexity"},
    "infilling": {"adapted", "filler", "translator"},
    "spans": {"adapted", "filler", "translator"},
    "seq2seq": {"translator", "filler", "scores", "pair_scores", "ensemble"},
    "classification": {"classes", "classifier", "scores"},
    "tagging": {"classes", "tagger", "scores"},
    **dict.fromkeys(("conversation", "preference", "group_policy"), TALKS),
    "none": set(),
}
"""The optional methods of `Task` and `TrainableTask` that each task implements; without them, it lacks the ability."""
OPTIONAL = {name for cls in (Task, TrainableTask) for name in vars(cls) if not name.startswith("_")} - (
    TrainableTask.__abstractmethods__
    | {"predicts_next", "adopt", "vote", "verb", "learned", "example", "check", "micro_batch"}
)


USED_BY = {
    "writer": {"generate", "chat", "score"},
    "translator": {"translate", "score"},
    "filler": {"fill"},
    "classifier": {"classify"},
    "tagger": {"tag"},
}
"""The verbs that use each ability."""


@pytest.mark.parametrize("kind", BUILT_IN)
def test_the_verbs_that_are_accepted_before_torch_are_those_of_the_abilities(kind: str) -> None:
    verbs = set().union(*(USED_BY.get(ability, set()) for ability in ABILITIES[kind]))
    facts, task = BUILT_IN[kind], task_of_kind(kind)
    if isinstance(task, TrainableTask):
        verbs |= {"evaluate", "compare"}
    assert facts.verbs[0] == task.verb and set(facts.all_verbs) == verbs | {facts.verbs[0]}
    assert task.facts in (facts, BUILT_IN["spans"])
    assert ("ensemble" in ABILITIES[kind]) == (task.verb == "translate")
    assert task.predicts_next == ("generate" in verbs) and ("classes" in ABILITIES[kind]) == (kind in LABELLED)


def test_every_kind_of_objective_has_a_task_and_every_task_a_kind() -> None:
    kinds = [settings.kind for settings in own_members(ObjectiveConfig)]
    assert kinds != [] and set(kinds) == set(BUILT_IN) == set(ABILITIES)
    for settings in own_members(ObjectiveConfig):
        found = task_of(Run(objective=settings()))
        assert isinstance(found, Task) and found.settings is settings and found is task_of_kind(settings.kind)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_task_has_its_abilities_only(kind: str) -> None:
    found = task_of_kind(kind)
    own = {name for cls in type(found).__mro__ if cls not in (Task, TrainableTask, object) for name in vars(cls)}
    assert own & OPTIONAL == ABILITIES[kind]
    assert isinstance(found, TrainableTask) == (kind != "none")


def test_a_task_of_imported_models_cannot_be_trained(tmp_path: Path) -> None:
    """The first check of a run reports it, before a missing data.path."""
    run = Run(objective=task_of_kind("none").settings())
    for refused in (lambda: trainable_task(run), lambda: check_new_run(run, tmp_path / "run")):
        with pytest.raises(UserError, match=r"the run 'run' has objective\.kind none and cannot be trained"):
            refused()


FOREIGN = '''
from dataclasses import dataclass
from typing import ClassVar

from glassformer.config.schema import checked, setting
from glassformer.tasks.language_modeling import LanguageModeling


@checked
@dataclass(frozen=True)
class EveryOther:
    """Predict every other token."""

    kind: ClassVar[str] = "every-other"
    every: int = setting(2, "tokens from one target to the next")
    label_smoothing: float = setting(0.0, "probability spread over the vocabulary")


class EveryOtherTask(LanguageModeling):
    settings = EveryOther

    def learned(self, run):
        return f"predict one token in {run.objective.every}"


TASK = EveryOtherTask()
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with another task."""
    site = tmp_path / "site"
    (site / "every_other-1.0.dist-info").mkdir(parents=True)
    (site / "every_other.py").write_text(FOREIGN, "utf-8")
    (site / "every_other-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: every-other\n", "utf-8")
    (site / "every_other-1.0.dist-info" / "entry_points.txt").write_text(
        "[glassformer.tasks]\nevery-other = every_other:TASK\n", "utf-8"
    )
    monkeypatch.syspath_prepend(str(site))
    return site


def test_a_task_is_imported_at_first_use_and_another_package_adds_one(package: Path, tmp_path: Path) -> None:
    """In a separate process, like the command line: imports, recipe, flags, help, training, and use of the model."""
    text = write_text(tmp_path)
    recipe = tmp_path / "foreign.toml"
    recipe.write_text(
        f'name = "foreign"\n[data]\npath = "{text}"\n[objective]\nkind = "every-other"\nevery = 3\n'
        "[tokenizer]\nvocab_size = 290\n[model]\nd_model = 16\nmax_len = 32\n[model.decoder]\nn_layers = 1\n"
        'n_heads = 2\n[train]\nmax_steps = 2\nbatch_size = 2\ndevice = "cpu"\n',
        "utf-8",
    )
    program = f"""
import sys, glassformer.model
from glassformer.config.run import Run
from glassformer.tasks.task import kinds, task_of
from glassformer.tasks.requirements import BUILT_IN
homes = {{"glassformer.tasks." + facts.home.split(":")[0] for facts in BUILT_IN.values()}}
assert not homes & set(sys.modules), homes & set(sys.modules)
task_of(Run())
assert homes & set(sys.modules) == {{"glassformer.tasks.language_modeling"}}

sys.path.insert(0, {str(package)!r})
from glassformer import api
from glassformer.apps.cli.main import run
assert "every-other" in kinds()
run(["train", "--help", "all"])
out = {str(tmp_path / "run")!r}
run(["train", {str(recipe)!r}, "--objective.every", "5", "--data.cache-dir", {str(tmp_path)!r}, "--out", out])
model = api.load(out)
assert model.run.objective.every == 5 and model.learned == "predict one token in 5"
assert model.evaluate(log=print).loss > 0
print(model)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "--objective.every" in done.stdout and "tokens from one target to the next" in done.stdout
    assert "learned to predict one token in 5" in done.stdout


def test_an_unknown_key_of_a_foreign_task_is_named(package: Path) -> None:
    from glassformer.config.schema import from_dict

    with pytest.raises(UserError, match=r"unknown key objective\.evry: did you mean objective\.every"):
        from_dict(Run, {"objective": {"kind": "every-other", "evry": 3}})
    with pytest.raises(UserError, match=r"unknown key objective\.every: it belongs to another objective.kind"):
        from_dict(Run, {"objective": {"kind": "causal", "every": 3}})


def test_a_package_that_cannot_be_loaded_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.config.schema import from_dict

    (package / "every_other.py").write_text("import no_such_module\n", "utf-8")
    monkeypatch.delitem(sys.modules, "every_other", raising=False)
    with pytest.raises(UserError, match=r"'every-other' .* of the package every-other cannot be loaded: No module"):
        from_dict(Run, {"objective": {"kind": "every-other"}})
    assert Run(data=TextData()).objective.kind == "causal", "tasks of glassformer need no other package"


def test_a_task_can_be_registered_in_python(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    from glassformer.config import extensions
    from glassformer.config.schema import from_dict

    monkeypatch.setattr(extensions, "_registered", {})
    monkeypatch.setattr(registry, "_registered", {})
    names: dict[str, Any] = {}
    names["__name__"] = __name__
    exec(FOREIGN.replace('"every-other"', '"by-hand"'), names)
    registry.register(names["TASK"])
    run = from_dict(Run, {"objective": {"kind": "by-hand", "every": 7}})
    assert run.objective.kind == "by-hand" and task_of(run) is names["TASK"]
    with pytest.raises(UserError, match="the kind 'causal' is a built-in task"):
        registry.register(task_of_kind("causal"))
