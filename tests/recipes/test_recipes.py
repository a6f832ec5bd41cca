"""Every recipe is a run that can be built, and a text alone gives a run."""

from dataclasses import replace
from pathlib import Path

import pytest

import papers
from glassformer.apps.cli.main import parse
from glassformer.apps.cli.train import run_for
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.presets import PRESETS
from glassformer.config.run import LabelData, PairData, Run
from glassformer.config.schema import describe
from glassformer.config.train import AdamWConfig, CosineSchedule, MuonConfig
from glassformer.data import own_data
from glassformer.models.build import build_model
from glassformer.tasks.requirements import context_of
from glassformer.tasks.task import trainable_task


def test_the_documented_recipes_exist() -> None:
    assert set(recipes.names()) >= {
        "copy-task",
        "python-docs",
        "shakespeare-char",
        "shakespeare-char-fast",
        "shakespeare-char-gpu",
        "shakespeare-char-modern",
    }


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_has_a_result_and_a_model(name: str) -> None:
    run = recipes.load(name)
    assert run.train.precision in ("auto", "fp32"), "a processor without the instructions would emulate them"
    assert run.name == name and run.description
    result = run.result
    assert result is not None and result.note and (result.at_most < float("inf") or result.at_least > 0)
    require_trainable(run)


@pytest.mark.parametrize("name", papers.FILES)
def test_the_documented_files_of_papers_can_be_trained(name: str) -> None:
    run = papers.run_of(name)
    assert run.model == PRESETS[run.name]
    require_trainable(run)


def require_trainable(run: Run) -> None:
    vocab_size = run.model.vocab_size or run.tokenizer.vocab_size or 65
    model = replace(run.model, vocab_size=vocab_size)
    if isinstance(run.data, LabelData):
        model = replace(model, head=replace(model.head, n_labels=3))
    assert build_model(model, "meta").n_parameters() > 10_000
    if run.data.path is None:
        given = {"source": "a.txt", "target": "b.txt"} if isinstance(run.data, PairData) else {"path": "text.txt"}
        run = replace(run, data=replace(run.data, **given))
    trainable_task(run).check(run)


def test_shakespeare_char_equals_nanogpts_cpu_recipe() -> None:
    run = recipes.load("shakespeare-char")
    model, train = run.model, run.train
    assert model.decoder is not None
    assert (model.decoder.n_layers, model.decoder.n_heads, model.d_model, context_of(run)) == (4, 4, 128, 64)
    assert model.decoder.d_ff == 512
    assert (train.batch_size, train.grad_accumulation, train.max_steps, train.clip_norm) == (12, 1, 2000, 1.0)
    assert {model.embedding_dropout, model.residual_dropout, model.attention_dropout, model.ff_dropout} == {0.0}
    assert not (model.qkv_bias or model.attn_out_bias or model.ff_bias or model.norm_bias)
    optimizer = train.optimizer
    assert isinstance(optimizer, AdamWConfig)
    assert (optimizer.learning_rate, optimizer.betas, optimizer.weight_decay) == (1e-3, (0.9, 0.99), 0.1)
    assert train.schedule == CosineSchedule(warmup_steps=100, decay_steps=0, final_ratio=0.1)
    assert run.tokenizer.scheme == "char" and run.tokenizer.vocab_size == 0
    assert run.result is not None and (run.result.at_least, run.result.at_most) == (1.88, 1.92)


def test_the_modern_recipe_costs_no_more_than_the_old_one() -> None:
    old, new = recipes.load("shakespeare-char"), recipes.load("shakespeare-char-modern")
    n_old, n_new = (build_model(replace(run.model, vocab_size=65), "meta").n_parameters() for run in (old, new))
    assert n_new <= n_old
    tokens = [run.train.batch_size * run.train.grad_accumulation * context_of(run) for run in (old, new)]
    assert tokens[0] == tokens[1] and new.train.max_steps <= old.train.max_steps
    assert new.result is not None and new.result.at_most <= 1.62


def test_the_reference_explains_every_key_and_equals_the_default_run() -> None:
    text = recipes.text("REFERENCE")
    assert all(f"{entry.doc} (" in text for entry in describe(Run) if not entry.key.endswith(".kind"))
    assert recipes.parse(text, "REFERENCE") == Run()


def test_a_recipe_file_may_change_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[model]\npreset = "gpt2"\nd_model = 96\n[model.positions]\nkind = "rotary"\n')
    run = recipes.load(str(path))
    assert run.name == "mine"
    assert (run.model.d_model, run.model.positions.kind) == (96, "rotary")
    assert run.model.decoder == PRESETS["gpt2"].decoder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shakespear-char", "no recipe or file is called 'shakespear-char': did you mean shakespeare-char"),
        ("zzz", "no recipe or file is called 'zzz': known recipes are bart-denoise-small, characters"),
        ("no/such.toml", "no such file: no/such.toml"),
    ],
)
def test_a_missing_recipe_is_named(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        recipes.load(name)


def test_an_unknown_preset_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean gpt2"):
        recipes.parse('[model]\npreset = "gtp2"', "x.toml")


@pytest.mark.parametrize("n_bytes", [100, 1 << 18, 1 << 21, 1 << 23, 1 << 26])
def test_a_text_alone_gives_a_run_for_its_size(tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / 'my "text".txt'
    with open(path, "wb") as file:
        file.truncate(n_bytes)
    run, _ = own_data.run_of(path)
    assert (run.name, run.data.path) == ('my "text"', str(path))
    assert isinstance(run.train.optimizer, MuonConfig)
    assert context_of(run) <= run.model.max_len


def test_larger_texts_get_larger_runs(tmp_path: Path) -> None:
    sizes = []
    for n_bytes in (1 << 10, 1 << 18, 1 << 24, 1 << 27):
        with open(tmp_path / "t.txt", "wb") as file:
            file.truncate(n_bytes)
        run, _ = own_data.run_of(tmp_path / "t.txt")
        sizes.append((run.tokenizer.vocab_size, context_of(run), run.train.max_steps))
    assert sizes == sorted(sizes)
    with pytest.raises(UserError, match="no such file"):
        own_data.run_of(tmp_path / "none.txt")


def test_a_preset_is_a_flag_of_a_recipe() -> None:
    words = ["copy-task", "--model.preset", "modern-small", "--model.decoder.n-layers=3"]
    (run, _), small = parse(run_for, words, "train"), PRESETS["modern-small"]
    assert isinstance(run, Run) and small.decoder is not None
    assert run.model == replace(small, decoder=replace(small.decoder, n_layers=3))
    assert replace(run, model=recipes.load("copy-task").model) == recipes.load("copy-task"), "nothing else changes"
    with pytest.raises(UserError, match="unknown preset 'modern-smal': did you mean modern-small"):
        parse(run_for, ["copy-task", "--model.preset", "modern-smal"], "train")
    assert parse(run_for, ["copy-task", "--preset", "gpt2"], "train")[0].model == PRESETS["gpt2"]


def test_paths_of_recipes_may_be_texts_or_paths(tmp_path: Path) -> None:
    text, toml = tmp_path / "text.txt", tmp_path / "mine.toml"
    text.write_text("abc")
    toml.write_text("[train]\nmax_steps = 3\n")
    assert own_data.run_of(str(text)) == own_data.run_of(text)
    assert recipes.load(str(toml)) == recipes.load(toml) == own_data.run_of(toml)[0]
    with pytest.raises(UserError, match=r"source must be a path .a str or a Path., not NoneType"):
        own_data.run_of(None)  # type: ignore[arg-type]
