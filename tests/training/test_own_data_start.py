"""Own data with a trained model as its start: the settings suit that model, and given settings come first."""

from dataclasses import replace
from pathlib import Path

import pytest

from glassformer import api
from glassformer.apps.cli.train import run_for
from glassformer.common.errors import Note, UserError
from glassformer.config.transformer import Stack
from runs import MODEL, conversation_run, tiny_run, write_conversations, write_text

WIDE = replace(MODEL, decoder=Stack(1, 2, d_ff=32), d_model=200, max_len=64, ff_dropout=0.25, residual_dropout=0.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("start")


@pytest.fixture(scope="module")
def wide(place: Path) -> Path:
    """A text model that is wider than the one that the data gets."""
    return api.train(tiny_run(write_text(place), model=WIDE, max_steps=1), place / "wide").folder


@pytest.fixture(scope="module")
def chat(place: Path) -> Path:
    """A narrow model with a chat template."""
    return api.train(conversation_run(place, max_steps=1), place / "chat").folder


@pytest.fixture(scope="module")
def data(place: Path) -> str:
    return str(write_conversations(place, name="data"))


def test_a_wide_start_is_trained_with_adamw_and_keeps_its_dropouts(wide: Path, data: str) -> None:
    new, note_of_new = run_for(data)
    run, note = run_for(data, init=str(wide))
    assert new.train.optimizer.kind == "muon" and new.model.residual_dropout == 0.2
    assert run.train.optimizer.kind == "adamw" and run.train.optimizer.learning_rate == 0.0003, "0.05 / 200, rounded"
    assert run.train.schedule.warmup_steps == run.train.max_steps // 20
    assert [run.model.residual_dropout, run.model.ff_dropout, run.model.embedding_dropout] == [0.0, 0.25, 0.0]
    assert note.startswith(note_of_new) and f"{wide}, where you give none: adamw with learning rate 0.0003" in note
    adapted, _ = run_for(data, init=str(wide), rank="2")
    assert adapted.lora is not None and adapted.train.optimizer.learning_rate == 0.003, "ten times the rate"


@pytest.mark.parametrize(
    ("given", "rate", "dropout"),
    [
        ({"train.optimizer.kind": "muon"}, 0.02, 0.0),
        ({"learning_rate": "0.5"}, 0.5, 0.0),
        ({"model.residual-dropout": "0.3", "train.optimizer.learning-rate": "1e-5"}, 1e-5, 0.3),
    ],
)
def test_given_settings_come_first(wide: Path, data: str, given: dict[str, str], rate: float, dropout: float) -> None:
    run, _ = run_for(data, init=str(wide), **given)
    assert run.train.optimizer.learning_rate == rate and run.model.residual_dropout == dropout


def test_other_starts_keep_the_settings(wide: Path, chat: Path, data: str) -> None:
    new, note = run_for(data)
    for init, given in ((chat, {}), (wide, {"init.model": "recipe"})):
        run, found = run_for(data, init=str(init), **given)
        assert (run.train, run.model, found) == (new.train, new.model, note)
    recipe, _ = run_for("python-docs")
    assert run_for("python-docs", init=str(wide))[0].train == recipe.train


def test_lora_needs_no_other_setting(chat: Path, wide: Path, data: str, tmp_path: Path) -> None:
    few = {"rank": 2, "max_steps": 1, "batch_tokens": 256}
    with pytest.warns(Note, match=f"messages; settings for the trained model {chat}"):
        adapted = api.train(data, tmp_path / "adapted", init=chat, **few).model
    assert adapted.run.lora is not None and adapted.run.train.optimizer.kind == "adamw"
    rows = [{"prompt": f"red {i}", "completion": "rot"} for i in range(40)]
    with pytest.warns(Note) as notes:
        api.train(rows, tmp_path / "rows", init=chat, **few)
    told = [str(note.message) for note in notes]
    assert "records.jsonl" in told[0] and told[1].startswith(f"settings for the trained model {chat}")
    with pytest.warns(Note), pytest.raises(UserError, match=r"\[lora\] would leave these new parameters untrained"):
        api.train(data, tmp_path / "plain", init=wide, **few)


def test_a_plan_has_the_same_settings(wide: Path, data: str) -> None:
    run, notes = api.run_to_plan(data, {"init.path": str(wide)})
    assert run.train.optimizer.kind == "adamw" and "where you give none" in notes
