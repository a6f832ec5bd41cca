"""Reading and writing configurations: unknown keys and wrong types are refused, and no value is lost."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import papers
from configs import CONFIGS
from glassformer.common.errors import UserError, notes_to
from glassformer.config import changes, recipes, schema
from glassformer.config.changes import apply_flags
from glassformer.config.extensions import members
from glassformer.config.presets import PRESETS
from glassformer.config.recurrent import RecurrentConfig
from glassformer.config.run import GenerationConfig, PackedRows, Run, TextData
from glassformer.config.schema import FlagText, describe, from_dict, known_keys, to_dict
from glassformer.config.train import AdamConfig, AdamWConfig, EarlyStopping, MuonConfig, PlateauSchedule, TrainConfig
from glassformer.config.transformer import LinearScaling, RotaryPositions, Stack, TransformerConfig
from glassformer.config.written import parse_toml, to_toml
from glassformer.store.model_directory import read_config


def read(text: str) -> Run:
    return from_dict(Run, parse_toml(text, "a.toml"), "a.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nme = 'x'", "unknown key nme: did you mean name? .in a.toml."),
        ("[trian]", "unknown key trian: did you mean train?"),
        ("[train]\nmax_step = 1", "unknown key train.max_step: did you mean train.max_steps?"),
        ("[model.decoder]\nn_head = 1", "unknown key model.decoder.n_head: did you mean model.decoder.n_heads?"),
        ("[train.optimizer]\nkind = 'adamw'\nbeta = 1", "train.optimizer.beta: did you mean train.optimizer.betas?"),
        (
            "[model.positions]\nkind = 'rotary'\n[model.positions.scaling]\nkind = 'yarn'\nbeta_slo = 1",
            "model.positions.scaling.beta_slo: did you mean model.positions.scaling.beta_slow?",
        ),
        (
            "[model.positions]\nkind = 'rotary'\n[model.positions.scaling]\nkind = 'yarn'\nfacto = 1",
            "model.positions.scaling.facto: did you mean model.positions.scaling.factor?",
        ),
        ("learning_rate = 1", "unknown key learning_rate: did you mean train.optimizer.learning_rate?"),
        ("[model]\nmax_steps = 1", "unknown key model.max_steps: did you mean train.max_steps?"),
        ("[train.optimizer]\nkind = 'learned'", "train.optimizer.kind 'learned' is unknown"),
        ("[train.optimizer]\nkind = 'adamv'", "train.optimizer.kind 'adamv' is unknown: did you mean adam"),
        ("[train.optimizer]\nlearning_rate = 1", "train.optimizer.kind is missing; known kinds are adam, adamw, muon"),
        (
            "[train.optimizer]\nkind = 'adam'\nadamw_weight_decay = 1",
            "adamw_weight_decay: it belongs to another train.optimizer.kind",
        ),
        ("zzqqxx = 1", "unknown key zzqqxx .in a.toml.$"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("?", r"\?").replace("[", r"\[")):
        read(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[train]\nmax_steps = 1.5", "train.max_steps must be an integer, not 1.5"),
        ("[train]\nmax_steps = true", "train.max_steps must be an integer, not True"),
        ("[train]\nmax_steps = '5'", "train.max_steps must be an integer, not '5'"),
        ("[train]\ncompile = 1", "train.compile must be auto | true | false, not 1"),
        ("[train]\nclip_norm = 'x'", "train.clip_norm must be a number, not 'x'"),
        ("[train]\nclip_norm = true", "train.clip_norm must be a number, not True"),
        ("[train]\nprecision = 'fp8'", "train.precision must be auto | fp32 | tf32 | bf16 | fp16, not 'fp8'"),
        ("[train]\noptimizer = 'muon'", "train.optimizer must be .*; give its kind as train.optimizer.kind"),
        ("train = 5", "train must be"),
        ("[train.optimizer]\nkind = 'adam'\nbetas = [0.9]", "train.optimizer.betas must be .number, number., not"),
        ("[generation]\nstop = 'x'", "generation.stop must be list of text, not 'x'"),
        ("[generation]\nstop = [1]", "generation.stop must be list of text"),
        ("name = 1", "name must be a text, not 1"),
        ("[data]\npath = 1", "data.path must be text | none, not 1"),
        ("[train.early_stopping]\nmetric = 1", "train.early_stopping.metric must be a text"),
    ],
)
def test_a_value_of_the_wrong_type_names_its_key(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("|", r"\|")):
        read(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[train]\nbatch_size = 0", "train.batch_size is 0 and must be at least 1"),
        ("[train]\nema_decay = 1.0", "train.ema_decay"),
        ("[train.optimizer]\nkind = 'adam'\nlearning_rate = -1", "train.optimizer.learning_rate is -1.0"),
        ("[train.optimizer]\nkind = 'muon'\nlearning_rate = nan", "learning_rate must be a number, not nan"),
        ("[train.optimizer]\nkind = 'adamw'\nbetas = [0.9, 1]", "optimizer.betas"),
        ("[train.schedule]\nkind = 'plateau'\nwarmup_steps = -1", "train.schedule.warmup_steps is -1"),
        ("[objective]\nlabel_smoothing = 1", "objective.label_smoothing is 1.0"),
        ("[tokenizer]\nbpe_dropout = 2", "tokenizer.bpe_dropout is 2.0"),
        ("[generation]\ntop_p = 0", "top_p is 0.0"),
        ("[model.decoder]\nn_heads = 7", "model.d_model 512 is not divisible by model.decoder.n_heads 7"),
        ("[model]\nd_model = 0\n[model.decoder]", "model.d_model is 0"),
    ],
)
def test_numbers_out_of_range_are_named(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(text)


def test_invalid_toml_names_the_file() -> None:
    with pytest.raises(UserError, match=r"^a\.toml is not valid TOML: .*line 1"):
        read("a = = 1")


RUNS: dict[str, Run] = (
    {f"recipe {name}": papers.run_of(name) for name in (*recipes.names(), *papers.FILES)}
    | {f"preset {name}": Run(model=config) for name, config in PRESETS.items()}
    | {f"config {name}": Run(model=config) for name, config in CONFIGS.items()}
    | {
        "everything else": Run(
            name='quotes " and \\ and \n and é and \x7f',
            model=TransformerConfig(decoder=Stack(window_pattern=(3, 0)), attention_scale=1e-30),
            train=TrainConfig(
                optimizer=AdamWConfig(betas=(0.1, 0.2)),
                schedule=PlateauSchedule(),
                early_stopping=EarlyStopping("bits_per_byte"),
            ),
            generation=GenerationConfig(stop=("\n\n", "\tEND")),
        )
    }
)


def test_a_run_is_unchanged_by_toml(subtests: pytest.Subtests) -> None:
    for name, run in RUNS.items():
        with subtests.test(name):
            assert read(to_toml(to_dict(run))) == run


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(allow_nan=False), st.integers(), st.booleans())
def test_any_value_is_unchanged_by_toml(text: str, number: float, integer: int, flag: bool) -> None:
    table = {"a": text, "b": {"c": number, "d": [integer, 2], "e": {"f": flag, "g": [text]}}}
    assert parse_toml(to_toml(table), "x") == table


@pytest.mark.parametrize(
    ("flags", "check"),
    [
        ({"train.max-steps": "1,000"}, lambda run: run.train.max_steps == 1000),
        ({"train.max_steps": "2_000"}, lambda run: run.train.max_steps == 2000),
        ({"train.compile": "true"}, lambda run: run.train.compile is True),
        ({"train.compile": "False"}, lambda run: run.train.compile is False),
        ({"train.clip-norm": "0"}, lambda run: run.train.clip_norm == 0.0),
        ({"data.path": "12"}, lambda run: run.data.path == "12"),
        ({"data.path": "none"}, lambda run: run.data.path is None),
        ({"train.optimizer.kind": "muon"}, lambda run: run.train.optimizer == MuonConfig()),
        (
            {"train.optimizer.adamw_weight_decay": "0.5", "train.optimizer.kind": "muon"},
            lambda run: run.train.optimizer == MuonConfig(adamw_weight_decay=0.5),
        ),
        (
            {
                "model.positions.scaling.factor": "2",
                "model.positions.scaling.kind": "linear",
                "model.positions.kind": "rotary",
            },
            lambda run: run.model.positions == RotaryPositions(scaling=LinearScaling(2.0)),
        ),
        ({"train.optimizer.betas": "0.8, 0.9"}, lambda run: run.train.optimizer.betas == (0.8, 0.9)),
        ({"train.optimizer.betas": "0.8 0.9"}, lambda run: run.train.optimizer.betas == (0.8, 0.9)),
        ({"model.decoder.window-pattern": ""}, lambda run: run.model.decoder.window_pattern == ()),
        ({"train.early-stopping.patience": "3"}, lambda run: run.train.early_stopping == EarlyStopping(patience=3)),
        ({"data.packing.kind": "packed"}, lambda run: run.data.packing == PackedRows()),
        ({"model.encoder.n-layers": "1", "model.decoder": "none"}, lambda run: run.model.decoder is None),
    ],
)
def test_flags_are_read_with_the_type_of_their_field(flags: dict[str, str], check: Any) -> None:
    assert check(apply_flags(Run(), flags))


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("train.max-stes", "5", "unknown key train.max_stes: did you mean train.max_steps. .in the command line."),
        ("train.max-steps", "five", "train.max_steps must be an integer, not 'five' .in the command line."),
        ("train.max-steps", "1.5", "train.max_steps must be an integer"),
        ("train.compile", "yes", "train.compile must be auto . true . false, not 'yes'"),
        ("train.optimizer.betas", "0.9", "must be .number, number."),
        ("train.optimizer.kind", "sgd", "train.optimizer.kind 'sgd' is unknown"),
        ("train.optimizer.adamw_weight_decay", "0.9", "it belongs to another train.optimizer.kind"),
        ("train.max-steps.more", "1", "train.max_steps must be an integer"),
    ],
)
def test_wrong_flags_are_named_with_their_value(flag: str, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        apply_flags(Run(), {flag: text})


def test_only_the_text_of_a_flag_is_converted() -> None:
    assert from_dict(AdamConfig, {"learning_rate": FlagText("1e-3")}).learning_rate == 1e-3
    with pytest.raises(UserError):
        from_dict(AdamConfig, {"learning_rate": "1e-3"})


def test_flags_do_not_change_the_original() -> None:
    run = Run()
    apply_flags(run, {"train.max-steps": "1", "generation.stop": "a b"})
    assert run == Run()


def test_flags_with_the_present_kinds_change_nothing(subtests: pytest.Subtests) -> None:
    """The other keys of their tables keep their values, which differ from the defaults in many of these runs."""
    for name, run in RUNS.items():
        kinds = {key: value for key, value in leaves(to_dict(run)) if key.endswith(".kind")}
        with subtests.test(name):
            assert kinds and apply_flags(run, kinds) == run


def leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of everything in nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_every_key_has_a_description_and_can_be_a_flag() -> None:
    entries = list(describe(Run))
    for entry in entries:
        assert entry.doc and entry.type, entry.key
    assert len(known_keys(Run)) == len({entry.key for entry in entries}) > 100
    for entry in entries:
        key = entry.key
        if "." in key and not key.endswith(".kind") and entry.default is not None:
            with pytest.raises(UserError, match="did you mean"):
                apply_flags(Run(), {key + "x": "1"})


def classes() -> set[type]:
    """Return every dataclass that a run may contain."""
    found: set[type] = set()
    queue: list[Any] = [Run, TransformerConfig, RecurrentConfig]
    while queue:
        cls = queue.pop()
        if cls not in found:
            found.add(cls)
            hints = get_type_hints(cls)
            queue += [m for f in fields(cls) for m in members(hints[f.name]) if is_dataclass(m)]
    return found


def test_every_configuration_checks_the_types_of_its_values(subtests: pytest.Subtests) -> None:
    """Every field refuses a value of a wrong type; unknown names are refused; a copy is equal."""
    for cls in sorted(classes(), key=lambda cls: cls.__name__):
        with subtests.test(cls.__name__):
            defaults: dict[str, Any] = {"decoder": Stack()} if cls is TransformerConfig else {}
            assert replace(cls(**defaults)) == cls(**defaults)  # type: ignore[type-var]
            for field in fields(cls):  # type: ignore[arg-type]
                with pytest.raises(UserError, match=rf"{cls.__name__}\.{field.name} must be "):
                    cls(**defaults | {field.name: object()})
            with pytest.raises(UserError, match=f"{cls.__name__} has no field zzz"):
                cls(zzz=1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TransformerConfig(), r"needs an encoder, a decoder, or both: give decoder=Stack.*preset\(\"modern-mi"),
        (
            lambda: TransformerConfig(decoder=Stack(), d_model="64"),
            "TransformerConfig.d_model must be an integer, not '64'",
        ),
        (
            lambda: TransformerConfig(n_layers=2),
            r"no field n_layers: did you mean encoder=Stack\(n_layers=…\) or decoder",
        ),
        (lambda: TransformerConfig(n_layers=2), r"a preset to start from: glassformer\.presets\.preset"),
        (lambda: TransformerConfig(d_modle=2), r"did you mean d_model=…\?"),
        (lambda: TransformerConfig(base=2.0), r"did you mean positions=RotaryPositions\(base=…\)"),
        (lambda: TransformerConfig(decoder=6), "decoder must be Stack | none, not 6$"),
        (
            lambda: TransformerConfig(decoder=Stack(), max_len=1.5),
            r"TransformerConfig.max_len must be an integer, not 1\.5",
        ),
        (lambda: TransformerConfig(decoder=Stack(), norm="batch"), "norm must be layernorm | rmsnorm, not 'batch'"),
        (lambda: TransformerConfig(decoder=Stack(), gated_ff=1), "gated_ff must be true | false, not 1"),
        (lambda: Stack(True), "Stack.n_layers must be an integer, not True"),
        (lambda: replace(Stack(), n_heads=None), "Stack.n_heads must be an integer, not None"),
        (lambda: RotaryPositions(base=math.nan), "RotaryPositions.base must be a number, not nan"),
        (lambda: Stack(n_layers=1 << 63), r"Stack.n_layers is 9223372036854775808 and must have at most 64 bits"),
        (lambda: TrainConfig(max_stesp=5), "TrainConfig has no field max_stesp: did you mean max_steps"),
    ],
)
def test_a_wrong_value_in_python_is_named(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()


def test_equivalent_values_are_converted() -> None:
    given = TransformerConfig(decoder={"n_layers": np.int64(2), "window_pattern": [4, 0]}, norm_eps=1)  # type: ignore[arg-type]
    meant = TransformerConfig(decoder=Stack(n_layers=2, window_pattern=(4, 0)), norm_eps=1.0)
    assert given == meant and hash(given) == hash(meant) and type(given.norm_eps) is float
    assert TextData(path=Path("a/b")).path == str(Path("a/b"))  # type: ignore[arg-type]
    assert TextData(path="none").path is None


def test_an_old_key_is_read_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"train.steps": "train.max_steps", "model.decoder.depth": "model.decoder.n_layers"}
    monkeypatch.setattr(schema, "RENAMED", old)
    monkeypatch.setattr(changes, "RENAMED", old)
    notes: list[str] = []
    with notes_to(notes.append):
        run = read("name = 'old'\n[model]\nd_model = 8\n[model.decoder]\ndepth = 3\n[train]\nsteps = 7\n")
        named = [recipes.with_changes(run, {name: 9}) for name in ("train.steps", "steps")]
    assert (run.model.decoder.n_layers, run.train.max_steps) == (3, 7)  # type: ignore[union-attr]
    assert [one.train.max_steps for one in named] == [9, 9]
    known = "model.decoder.depth is now model.decoder.n_layers: the old name still works (in a.toml)"
    assert notes[0] == known and len(notes) == 4
    with pytest.raises(UserError, match=r"train\.steps is now train\.max_steps, which is given, too: leave out"):
        read("name = 'old'\n[train]\nsteps = 7\nmax_steps = 8\n")


def test_an_old_key_of_a_model_directory_is_read_with_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "RENAMED", {"model.decoder.depth": "model.decoder.n_layers"})
    (tmp_path / "config.json").write_text('{"kind": "transformer", "decoder": {"depth": 3}}')
    notes: list[str] = []
    with notes_to(notes.append):
        config, _ = read_config(tmp_path)
    assert config.decoder.n_layers == 3 and len(notes) == 1  # type: ignore[union-attr]
    assert notes[0].startswith("model.decoder.depth is now model.decoder.n_layers")
