"""Every change of a solution of the workshop fails the check, or changes nothing that the stub states."""

import ast

import pytest

from glassformer.apps.course.workshop.changes import changes
from glassformer.apps.course.workshop.checking import Function, different, result_of, within
from glassformer.apps.course.workshop.exercises import every_exercise

EXERCISES = every_exercise()
LIMIT_SECONDS = 20.0
LAST = "the tensor has two axes, so the last one is axis 1"
ONE = "the tensor has a single element there, or a single axis"
UNUSED = "the number is replaced afterwards: by the zeros of an empty row, or where the exact bucket is taken"
START = "no test draws the first weights"
FOUR = "the tensor has so many axes that both numbers name the same"
EQUIVALENT: dict[str, dict[str, str]] = {
    "Tokenizer": {
        "sign > 0 -> sign >= 0": "the sign is 1 or -1",
        "0 -> -1 in sign > -1": "the sign is 1 or -1",
        "1 -> 0 in range(longest, 0, -1)": "one symbol is taken in any case",
    },
    "Embeddings": {"False -> True in persistent=True": "the docstring speaks of parameters"},
    "RecurrentEncoder": {
        "0 -> 1 in (:, 1)": "zeros of this shape",
        "0 -> -1 in (:, -1)": "zeros",
        "-1 -> 1 in dim=1": LAST,
    },
    "BahdanauDecoder": {
        "torch.randn(width) / math.sqrt(width) -> torch.randn(width)": START,
        "-1 -> 1 in dim=1": LAST,
        "0 -> -1 in (:, -1)": ONE,
    },
    "LuongDecoder": {"-1 -> 1 in dim=1": LAST, "0 -> -1 in (:, -1)": ONE},
    "EncoderDecoder": {
        "if (ids == end).any(dim=1).all():": "the loop goes on, and later ids are cut off",
        "-1 -> 1 in dim=1": LAST,
        "(ids == end).any -> (ids == end).all": "the loop goes on, and later ids are cut off",
        "1 -> 0 in dim=0": "the loop goes on, and later ids are cut off",
    },
    "Residual": {
        "self.training and self.rate -> self.training": "at the rate 0, dropout changes nothing",
        "torch.rand_like(added) >= self.rate -> torch.rand_like(added) > self.rate": "equal with probability 0",
    },
    "batch_of": {"0 -> -1 in rows([[1]": "anything but 1 means padding"},
    "read_tensors": {"8 -> 7 in :7": "headers are shorter than 2^56 bytes"},
    "fit": {"0.0 -> 0.5 in lr=0.5": "each step sets its rate"},
    "generate": {"0 -> -1 in (-1, -1)": ONE},
    "weights_of": {"-2 -> 2 in key.transpose(2, -1)": FOUR},
    "ablate": {"-2 -> 2 in x.flatten(2)": FOUR, "0 -> -1 in given[-1]": ONE},
    "attention_by_tiles": {
        "(torch.zeros_like(largest), torch.zeros_like(q)) ->": "zeros, which take the other shape",
        "-2 -> 2 in": FOUR,
        "2 -> 3 in -3": "as many tiles, because the first place is a multiple of the size",
    },
    "from_gpt2": {
        "True -> False in strict=False": "both have three parts",
    },
    "log_p_of_labels": {"0 -> -1 in (..., -1)": ONE},
    "translate": {
        "if not any(live):": "the loop goes on without hypotheses",
        "-1 -> 1 in": LAST,
        "min(beam - len(finished[text]), n_live * n_ids) -> beam - len(finished[text])": "there are enough ids",
        "True -> False in stable=False": "the sort of a few numbers on a CPU keeps the order of equal ones",
        "n_live * n_ids -> n_ids": "there are enough ids",
        "1 -> 0 in -0": "a step reads one token",
    },
    "gru_step": {"-1 -> 1 in dim=1": LAST},
    "lstm_step": {"-1 -> 1 in dim=1": LAST},
    "cross_entropy": {"0 -> -1 in (..., -1)": ONE},
    "label_smoothed_loss": {"0 -> -1 in (..., -1)": ONE},
    "draw": {"0 -> -1 in dim=-1": ONE},
    "clip_gradients": {
        "norm <= max_norm -> norm < max_norm": "at the limit, the factor is 1",
        "gradient.clone() -> gradient": "a copy is not asked for",
    },
    "context": {"0.0 -> 0.5": UNUSED},
    "masked_softmax": {"0.0 -> 0.5": UNUSED},
    "bleu": {
        "True -> False in strict=False": "both lists have one length",
        "1 -> 2 in n - 2": "the counts are in another order, and their product is the same",
    },
    "mask_tokens": {"kind < 0.8 -> kind <= 0.8": "the next line replaces a token at 0.8"},
    "top_p": {"True -> False in stable=False": "the sort of a few numbers on a CPU keeps the order of equal ones"},
    "attend_with_cache": {"-2 -> 2 in key.transpose(2, -1)": "the tensor has four axes"},
    "relative_bucket": {
        "1 -> 2 in min=2": UNUSED,
        "1 -> 0 in min=0": UNUSED,
        "half - n_exact -> n_exact": "E is H / 2",
        "d < n_exact -> d <= n_exact": "the formula for large d gives the bucket E at d = E",
    },
    "train_step": {
        "loss.item() -> loss": "a tensor of one number counts as a number",
    },
    "draw_weights": {
        "('o', 'down') -> ('down', 'o')": "the order has no meaning",
    },
    "positions_of": {
        "is_token.long() -> is_token": "the sum of a mask is int64",
    },
    "write_tensors": {
        "x.detach() -> x": "no gradient is asked for",
    },
    "capture": {
        "output.detach() -> output": "gradients are off",
    },
    "patch": {
        "output.clone() -> output": "nothing else reads the output",
    },
    "LoRA": {
        "weight.detach() -> weight": "the matrix is not trained",
    },
}
"""Beginnings of the changes of a function that have no effect, and why."""


@pytest.mark.parametrize("name", EXERCISES)
def test_every_change_of_a_solution_is_found(name: str) -> None:
    exercise, equivalent = EXERCISES[name], dict(EQUIVALENT.get(name, {}))
    cases, survivors = exercise.cases(), []
    expected = [result_of(exercise.tested(exercise.solution), given, exercise.has_gradient) for given in cases]

    def is_right(function: Function) -> bool:
        pairs = zip(cases, expected, strict=True)
        return not any(different(result_of(function, given, exercise.has_gradient), right) for given, right in pairs)

    for change in changes(exercise.source()):
        function = exercise.tested(exercise.changed(change.source))
        if within(LIMIT_SECONDS, name, lambda function=function: is_right(function)):  # type: ignore[misc]
            survivors.append(f"{change.old} -> {change.new} in {change.place}")
    unknown = [what for what in survivors if not any(what.startswith(known) for known in equivalent)]
    assert not unknown, "add a test, or a reason to EQUIVALENT: " + "; ".join(unknown)
    unused = [known for known in equivalent if not any(what.startswith(known) for what in survivors)]
    assert not unused, f"these changes are found: {unused}"


def test_a_count_of_n_grams_without_a_limit_at_zero_is_wrong() -> None:
    """The number of n-grams of a text is max(0, length - n + 1)."""
    source = EXERCISES["bleu"].source()
    assert "found.total()" in source
    function = EXERCISES["bleu"].changed(source.replace("found.total()", "len(hypothesis) - n + 1"))
    cases = EXERCISES["bleu"].cases()
    assert any(different(result_of(function, x, False), result_of(EXERCISES["bleu"].solution, x, False)) for x in cases)


def test_the_changes_are_made_one_at_a_time() -> None:
    source = "def f(x):\n    'Return.'\n    return max(x + 1, 0) if x < 2 else x.sum(dim=-1)\n"
    found = list(changes(source))
    assert ast.unparse(ast.parse(source)) not in [change.source for change in found]
    assert {("x < 2", "x <= 2"), ("x + 1", "x - 1"), ("x + 1", "x"), ("-1", "1"), ("max", "min")} <= {
        (change.old, change.new) for change in found
    }
