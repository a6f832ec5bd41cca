"""Rewards for reinforcement learning: functions of the text of an answer and of the fields of the prompt's record."""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from glassformer.common.errors import UserError

Reward = Callable[[str, Mapping[str, Any]], float]


def exact(name: str) -> Reward:
    """Return the reward that is 1 for an answer equal to the field `name`, by default `answer`, after `strip`.

    >>> exact("")(" 4", {"answer": "4"}), exact("")("5", {"answer": "4"})
    (1.0, 0.0)
    """
    name = name or "answer"

    def reward(answer: str, fields: Mapping[str, Any]) -> float:
        if name not in fields:
            raise UserError(f"the reward exact needs the field {name!r}: add it to the data, or set exact:FIELD")
        return float(answer.strip() == str(fields[name]).strip())

    return reward


def regex(pattern: str) -> Reward:
    """Return the reward that is 1 for an answer in which a regular expression matches, otherwise 0.

    >>> regex(r"= \\d+$")("1 + 1 = 2", {})
    1.0
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"objective.rewards: regex:{pattern} is not a regular expression: {error}") from error
    return lambda answer, fields: float(compiled.search(answer) is not None)


def length(limit: str) -> Reward:
    """Return the reward that is 0 up to `limit` characters and falls by 1 for every `limit` further characters.

    >>> length("10")("short", {}), length("10")("x" * 15, {})
    (0.0, -0.5)
    """
    if not limit.isdecimal() or int(limit) == 0:
        raise UserError(f"objective.rewards: expected length:N with a number of characters, got length:{limit}")
    return lambda answer, fields: min(0.0, 1 - len(answer) / int(limit))


BUILT_IN: Mapping[str, Callable[[str], Reward]] = {"exact": exact, "regex": regex, "length": length}


def require_rewards(names: Sequence[str]) -> None:
    """Raise `UserError` for an unknown reward, but do not import the module of a function in `module:function`."""
    if not names:
        raise UserError(f"objective.rewards: expected at least one of {', '.join(BUILT_IN)} and module:function")
    for name in names:
        kind, _, rest = name.partition(":")
        if kind in BUILT_IN:
            BUILT_IN[kind](rest)
        elif not rest or find_spec(kind.partition(".")[0]) is None:
            raise UserError(
                f"objective.rewards: expected {', '.join(BUILT_IN)} or module:function of an installed package, "
                f"got {name!r}"
            )


def total_reward(names: Sequence[str], *, imports: bool) -> Reward:
    """Return the function that sums these rewards; raise `UserError` for a reward function that does not exist.

    Without `imports`, the caller must have imported the module of a reward `module:function`, because a model directory
    is not trusted.
    """
    rewards = [_reward(name, imports) for name in names]

    def total(answer: str, fields: Mapping[str, Any]) -> float:
        value = float(sum(reward(answer, fields) for reward in rewards))
        if not math.isfinite(value):
            raise UserError(f"the rewards {', '.join(names)} are {value} for the answer {answer!r:.60}")
        return value

    return total


def _reward(name: str, imports: bool) -> Reward:
    kind, _, rest = name.partition(":")
    if kind in BUILT_IN:
        return BUILT_IN[kind](rest)
    if not imports and kind not in sys.modules:
        raise UserError(
            f"the reward {name} is code of the module {kind}, which a model directory must not run: import the module "
            "in Python before you evaluate"
        )
    try:
        return getattr(import_module(kind), rest)
    except (ImportError, AttributeError) as error:
        raise UserError(f"objective.rewards: {name} cannot be imported: {error}") from error
