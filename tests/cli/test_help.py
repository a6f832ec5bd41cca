"""The help: every option is listed once, in 80 columns, with examples that can be parsed."""

import re
import shlex
from importlib import import_module

import pytest

from glassformer.apps.cli.arguments import Group, Signature, all_flags, with_flags
from glassformer.apps.cli.help import FIRST_KEYS, N_FIRST
from glassformer.apps.cli.main import VERBS
from glassformer.config.run import Run
from glassformer.config.train import CHANGEABLE
from glassformer.cost.hardware import GPUS

from .conftest import Glassformer
from .test_bad_input import require_one_sentence

WITH_KEYS = ("train", "plan", "reproduce", "demo")
N_LINES = {"generate": 100, "translate": 90, "evaluate": 90}
"""Bounds of the lines of a help, for the verbs that have all settings of a beam search; others have less than 80."""
OPTION = re.compile(r"^  --?([a-z][a-z._-]*)", re.MULTILINE)


def listed(shown: str) -> list[str]:
    """Return the options of a help text, in order."""
    return OPTION.findall(shown)


def blocks(shown: str) -> dict[str, str]:
    """Return the lines of a help text below each title."""
    return dict(re.findall(r"^(\S.*)\n((?:  .*\n?)+)", shown, re.MULTILINE))


def test_every_verb_has_help(glassformer: Glassformer) -> None:
    usage = glassformer("--help")
    assert usage.code == 0 and all(f"  {verb}" in usage.out for verb in VERBS)
    assert glassformer().code == 2
    assert glassformer("--version").out.startswith("glassformer 0.")


@pytest.mark.parametrize("verb", VERBS)
def test_help_explains_every_option_once_in_80_columns(glassformer: Glassformer, verb: str) -> None:
    main = import_module(f"glassformer.apps.cli.{verb}").main
    names = [[verb], *([verb, inner] for inner in main.verbs)] if isinstance(main, Group) else [[verb]]
    for name in names:
        shown = glassformer(*name, "--help")
        assert shown.code == 0 and not shown.err and shown.out == glassformer(*name, "-h").out
        assert shown.out.startswith(f"usage: glassformer {' '.join(name)}")
        assert all(len(line) <= 80 for line in shown.out.splitlines()), name
        options = listed(shown.out)
        assert len(options) == len(set(options)), name
        parts = blocks(shown.out)
        assert len(listed(parts.get("Most used options:", "") + parts.get("Options:", ""))) <= N_FIRST
        assert all(
            meant.strip() for meant in re.findall(r"^  -\S+(?: [A-Z]+)?(?: …)?((?:.*\n   )?.*)$", shown.out, re.M)
        )
        assert "<class" not in shown.out and "typing." not in shown.out
        assert len(shown.out.splitlines()) < N_LINES.get(verb, 80), name
        assert glassformer("help", *name).out == shown.out


@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_of_a_verb_can_be_parsed(verb: str) -> None:
    main = import_module(f"glassformer.apps.cli.{verb}").main
    for inner, function in main.verbs.items() if isinstance(main, Group) else [("", main)]:
        name = f"{verb} {inner}".strip()
        signature = Signature.of(function, name)
        assert signature.examples, name
        for example in signature.examples:
            begin = ["glassformer", *name.split()]
            words = shlex.split(example.partition(" > ")[0])
            assert words[: len(begin)] == begin, example
            _, options = signature.read(words[len(begin) :])
            own = {*signature.groups, *(option.parameter for option in signature.options)}
            with_flags(Run(), {key: value for key, value in options.items() if key not in own})


@pytest.mark.parametrize("verb", WITH_KEYS)
def test_a_verb_that_takes_keys_lists_each_once(glassformer: Glassformer, verb: str) -> None:
    shown = glassformer(verb, "--help", "all").out
    assert shown == glassformer("help", verb, "all").out
    most_used = listed(blocks(shown)["Most used options:"])
    assert most_used == listed(blocks(glassformer(verb, "--help").out)["Most used options:"])
    own = {option.name for option in Signature.of(import_module(f"glassformer.apps.cli.{verb}").main, verb).options}
    first = [key for key in FIRST_KEYS if short(key) in most_used and short(key) not in own]
    keys = first + [name.replace("-", "_") for name in listed(shown) if "." in name]
    assert len(keys) == len(set(keys)) and set(keys) == {entry.key for entry in all_flags()}
    for title, below in blocks(shown).items():
        if title.startswith("["):
            assert all(name.replace("-", "_").startswith(f"{title[1:-1]}.") for name in listed(below)), title


def short(key: str) -> str:
    return key.rsplit(".", 1)[-1].replace("_", "-")


def test_help_lists_values_default_and_kinds_of_a_key(glassformer: Glassformer) -> None:
    shown = glassformer("train", "--help", "all").out
    for lines in (
        "  --max-steps INT             number of optimizer steps (default 2000)\n",
        "  --train.eval-every INT\n      steps between evaluations",
        "  --train.optimizer.kind NAME\n      the optimizer (adam | adamw | muon; default adamw)\n",
        "  --train.schedule.patience INT  (plateau)\n"
        "      evaluations without improvement before the learning rate drops (default 2)\n",
        "  --train.optimizer.eps FLOAT  (adam, adamw)\n",
    ):
        assert lines in shown, lines
    plain = " ".join(shown.split())
    assert "default 0.9 0.98 for adam, 0.9 0.95 for adamw)" in plain
    words = "validation data; none = a part of path, or its own validation split"
    assert f"pairs, labels, conversations, preferences, prompts: {words} (default none)" in plain


def test_resume_lists_the_keys_that_may_change(glassformer: Glassformer) -> None:
    shown = glassformer("resume", "--help").out
    keys = ["train.device", "train.max_steps", *(name.replace("-", "_") for name in listed(shown) if "." in name)]
    assert (
        "  --device TEXT " in shown
        and "  --max-steps INT " in shown
        and set(keys) == {entry.key for entry in all_flags() if entry.key.startswith(CHANGEABLE)}
    )


def test_plan_lists_the_gpus(glassformer: Glassformer) -> None:
    shown = glassformer("plan", "--help", "gpu").out
    assert all(name in shown for name in GPUS)


def test_help_explains_one_key(glassformer: Glassformer) -> None:
    shown = glassformer("train", "--help", "train.optimizer.kind").out
    for words in (
        "  the optimizer\n  values    adam | adamw | muon\n  default   adamw\n",
        "  muon   Muon (Jordan 2024) for hidden matrices, AdamW for all other parameters.\n",
        '  [train.optimizer]\n  kind = "adamw"\n',
        "  --train.optimizer.kind adamw\n",
    ):
        assert words in shown, words
    for name in ("batch_tokens", "--data.batch-tokens", "batch-tokens"):
        shown = glassformer("train", "copy-task", f"--help={name}").out
        assert shown.startswith("data.batch_tokens\n") and "  kinds     pairs\n" in shown
    assert '--train.optimizer.betas "0.9 0.98"' in glassformer("train", "-h", "betas").out
    assert glassformer("train", "--help", "optimizer").out.startswith("[train.optimizer]\n  --train.optimizer.kind")
    assert glassformer("generate", "--help", "top-k").out.startswith("  --top-k INT")
    assert glassformer("train", "--help", "out").out.startswith("  --out TEXT")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--help", "batch_token"], "unknown key batch_token: did you mean data.batch_tokens?"),
        (["train", "--help", "train.optimiser.kind"], "did you mean --train.optimizer.kind?"),
        (["generate", "--help", "top-kk"], "unknown option --top-kk: did you mean --top-k?"),
        (["evaluate", "--help", "train.seed"], "unknown option --train.seed"),
    ],
)
def test_an_unknown_key_is_named(glassformer: Glassformer, words: list[str], expected: str) -> None:
    require_one_sentence(glassformer(*words), expected)


def test_arguments_may_have_any_order_and_form(glassformer: Glassformer) -> None:
    words = ["--gpus=2", "--json", "gpt2", "--model.fused-qkv", "false", "--train.max_steps", "7"]
    assert glassformer("plan", *words).out == glassformer("plan", "gpt2", "--json", "--gpus", 2, *words[3:]).out
    assert glassformer("plan", "--json=false", "gpt2").out == glassformer("plan", "gpt2", "--json", "false").out
    for words in (["--", "--x"], ["--out", "y", "--", "--x"]):
        require_one_sentence(glassformer("train", *words), "no recipe or file is called '--x'")
    require_one_sentence(glassformer("plan", "gpt2", "--json=maybe"), "--json must be true | false, not 'maybe'")
    require_one_sentence(glassformer("resume"), "missing arguments of glassformer resume: DIR")
