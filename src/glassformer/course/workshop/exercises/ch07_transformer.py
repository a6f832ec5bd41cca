"""Chapter 7: label smoothing, greedy and beam search, and BLEU."""

from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import normal
from glassformer.course.workshop.solutions.ch07_transformer import (
    beam_search,
    bleu,
    greedy,
    label_smoothed_loss,
    length_penalty,
    n_grams,
)

CHAPTER = "course/07-the-transformer"
MISTAKES = "course/12-classical-mistakes"
START, END = 0, 1
HYPOTHESES = [
    "the cat sat on the mat",
    "the the the the cat",
    "a dog saw the small cat in the house",
    "so it is here now",
]
REFERENCES = ["the cat sat on a mat", "the cat and the dog", "a dog saw the cat in the old house", "so it is here"]


def language(n_ids: int, of_end: float, seed: int) -> Callable[[list[int]], Tensor]:
    """Return log-probabilities that depend on all ids so far; the logit of the end is changed by `of_end`."""

    def next_log_p(ids: list[int]) -> Tensor:
        number = seed
        for one in ids:
            number = (number * n_ids + one + 1) % 1_000_003
        logits = normal(n_ids, seed=number)
        logits[END] += of_end
        return logits.log_softmax(dim=-1)

    return next_log_p


def table(rows: dict[tuple[int, ...], list[float]]) -> Callable[[list[int]], Tensor]:
    """Return log-probabilities from rows of probabilities, by the ids after the start; an end follows an end."""

    def next_log_p(ids: list[int]) -> Tensor:
        row = rows.get(tuple(ids[1:]), [0, 0.5, 0.25, 0.25])
        if ids[-1] == END:
            row = [0, 1, 0, 0]
        return torch.tensor(row).log()

    return next_log_p


GARDEN_PATH = table({(): [0, 0, 0.6, 0.4], (2,): [0, 0.34, 0.33, 0.33], (3,): [0, 1, 0, 0]})
"""Id 2 is more probable than id 3, and a hypothesis with id 3 is more probable than one with id 2."""
LATE_END = table({(): [0, 0.4, 0.35, 0.25], (2,): [0, 0, 0.55, 0.45], (2, 3): [0, 0, 0, 1], (2, 3, 3): [0, 0, 0, 1]})
"""The third best beginning, (2, 3), has the best end."""

EARLY_END = table({(): [0, 0.4, 0.6, 0], (2,): [0, 1, 0, 0]})
"""The hypothesis that ends first is not the best."""
ONE_PLACE = table({(): [0, 0.4, 0.35, 0.25], (2,): [0, 0.45, 0, 0.55], (2, 3): [0, 0, 0, 1], (2, 3, 3): [0, 1, 0, 0]})
"""With a beam of 2, one place is left after the first end: (2, 3) has it, and not (2, end)."""
EQUAL = table({(): [0, 0.1, 0.45, 0.45], (2,): [0, 0, 0.5, 0.5], (2, 2): [0, 0.5, 0.5, 0]})
"""Each step has two ids of the same probability."""
EQUAL_LINES = table(
    {
        (): [0.125, 0.125, 0.25, 0.5],
        (2,): [0, 0, 0, 1],
        (3,): [0, 0, 0.5, 0.5],
        (2, 3): [0, 1, 0, 0],
        (3, 3): [0, 0.25, 0.5, 0.25],
    }
)
"""(2, 3), (3, 2) and (3, 3) have the same probability, and (3) is better than (2); one of the results is the best."""


def searches() -> list[tuple[object, ...]]:
    settings = [(3, 6, 0.0), (3, 6, 1.0), (2, 8, 0.6), (4, 3, 2.0), (1, 5, 1.0), (3, 4, -1.0)]
    cases: list[tuple[object, ...]] = [(GARDEN_PATH, START, END, 2, 5, alpha) for alpha in (0.0, 1.0)]
    tables = (LATE_END, EARLY_END, ONE_PLACE, EQUAL_LINES)
    cases += [(of, START, END, 2, 6, alpha) for of in tables for alpha in (0.0, 2.0)]
    cases.append((EQUAL, START, END, 1, 6, 0.0))
    for seed, (beam, max_len, alpha) in enumerate(settings):
        cases += [(language(6, of_end, seed), START, END, beam, max_len, alpha) for of_end in (0.0, 1.0, -9.0)]
    return cases


def smoothing_cases() -> list[tuple[object, ...]]:
    labels = torch.tensor([[3, 0, -100], [1, -100, -100]])
    large = torch.tensor([[1000.0, 0.0, 0.0]])
    cases: list[tuple[object, ...]] = [(normal(2, 3, 5), labels, smoothing) for smoothing in (0.1, 0.0)]
    return [*cases, (normal(1, 4), labels[1, :1], 0.4), (large, labels[1, :1], 0.1)]


EXERCISES = (
    Exercise(
        label_smoothed_loss,
        f"{CHAPTER}#training",
        smoothing_cases,
        (
            Mistake(
                "The mean is over all positions, also unscored ones: divide by the number of scored labels.",
                "losses[is_scored].mean()",
                "losses.masked_fill(~is_scored, 0.0).mean()",
                pitfall=19,
            ),
            Mistake(
                "Positions with the label -100 are scored as if their label were 0: leave them out.",
                "losses[is_scored].mean()",
                "losses.mean()",
                pitfall=19,
            ),
            Mistake("The losses are added: divide by the number of scored labels.", ".mean()\n", ".sum()\n"),
            Mistake(
                "The probabilities of the target add up to 1 + ε: the label must have 1 - ε.",
                "-(1 - smoothing) * of_label",
                "-of_label",
            ),
            Mistake(
                "Each token gets ε: divide it by the number of tokens, V.",
                "log_p.mean(dim=-1)",
                "log_p.sum(dim=-1)",
            ),
            Mistake(
                "ε is spread over the other tokens only: here it is spread over all V, the label included.",
                "log_p.mean(dim=-1)",
                "(log_p.sum(dim=-1) - of_label) / (logits.shape[-1] - 1)",
            ),
            Mistake(
                "The label has only 1 - ε: spread ε over all V tokens, so that the label gets ε / V too.",
                "smoothing * log_p.mean(dim=-1)",
                "smoothing * (log_p.mean(dim=-1) - of_label / logits.shape[-1])",
            ),
            Mistake(
                "There is no smoothing: spread ε of the target over all tokens.",
                "-(1 - smoothing) * of_label - smoothing * log_p.mean(dim=-1)",
                "-of_label",
            ),
            Mistake(
                "ε and 1 - ε are exchanged: the label has 1 - ε.",
                "-(1 - smoothing) * of_label - smoothing * log_p.mean(dim=-1)",
                "-smoothing * of_label - (1 - smoothing) * log_p.mean(dim=-1)",
            ),
            Mistake("The sign is wrong: a loss must be positive.", "return losses", "return -losses"),
            Mistake(
                "The part of ε includes unscored positions: leave them out of both parts.",
                "return losses[is_scored].mean()",
                "return -(1 - smoothing) * of_label[is_scored].mean() - smoothing * log_p.mean()",
                pitfall=19,
            ),
            Mistake("Labels with the id 0 are left out: leave out only -100.", "labels != -100", "labels > 0"),
            Mistake(
                "The logarithm of a softmax that underflows is -inf: use log_softmax.",
                "logits.log_softmax(dim=-1)",
                "logits.softmax(dim=-1).log()",
            ),
            Mistake(
                "This is the mean of the means of the rows: divide the sum of all labels by their number.",
                "return losses[is_scored].mean()",
                "return ((losses * is_scored).sum(dim=-1) / is_scored.sum(dim=-1)).mean()",
                pitfall=19,
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        greedy,
        f"{CHAPTER}#greedy-search",
        lambda: (
            [(language(5, of_end, seed), START, END, 6) for seed in range(3) for of_end in (-9.0, 0.5)]
            + [(EQUAL, START, END, 3)]
        ),
        (
            Mistake(
                "Only the last id is given to the model: give it all ids, with the start id first.",
                "[start, *ids]",
                "[start, *ids][-1:]",
                pitfall=33,
            ),
            Mistake("The model gets the ids without the start id.", "[start, *ids]", "ids"),
            Mistake("The search continues after the end token: stop there.", " and end not in ids", ""),
            Mistake("The start id is returned: return the ids after it.", "return ids", "return [start, *ids]"),
            Mistake(
                "The end token is removed: it belongs to the result.",
                "return ids",
                "return [i for i in ids if i != end]",
            ),
            Mistake("The result has one id more than `max_len`.", "len(ids) < max_len", "len(ids) <= max_len"),
            Mistake(
                "Of several ids with the largest probability, the largest id is taken: take the smallest.",
                "int(next_log_p([start, *ids]).argmax())",
                "len(log_p := next_log_p([start, *ids])) - 1 - int(log_p.flip(0).argmax())",
            ),
            Mistake("This is the least probable id: take the most probable one.", ".argmax()", ".argmin()"),
            Mistake("The result has one id less than `max_len`.", "len(ids) < max_len", "len(ids) < max_len - 1"),
            Mistake(
                "The end token is added, although it was not reached.",
                "return ids",
                "return ids if end in ids else [*ids, end]",
            ),
        ),
    ),
    Exercise(
        length_penalty,
        f"{CHAPTER}#length-penalty",
        lambda: [(1, 1.0), (7, 1.0), (7, 0.6), (3, 0.0), (13, 2.0), (4, 1.0)],
        (
            Mistake(
                "The power is applied to the numerator only: divide by 6 before it.",
                "((5 + length) / 6) ** alpha",
                "(5 + length) ** alpha / 6",
            ),
            Mistake("This is n to the power of α: take (5 + n) / 6 instead of n.", "(5 + length) / 6", "length"),
            Mistake("α is a power, and not a factor.", ") ** alpha", ") * alpha"),
            Mistake(
                "The division by 6 is missing, so the penalty of 1 id is not 1.",
                "((5 + length) / 6)",
                "(5 + length)",
            ),
            Mistake("The division drops the remainder: use /, not //.", "length) / 6", "length) // 6"),
            Mistake("The 5 is missing.", "(5 + length)", "length"),
            Mistake("Only n is divided by 6: divide 5 + n.", "(5 + length) / 6", "5 + length / 6"),
            Mistake(
                "This is the inverse: the penalty is a divisor, so it must grow with the length.",
                "** alpha",
                "** -alpha",
            ),
        ),
    ),
    Exercise(
        beam_search,
        f"{CHAPTER}#beam-search",
        searches,
        (
            Mistake(
                "Finished hypotheses are continued after their end token: keep them, and continue the others only.",
                "in chosen if ids[-1] != end",
                "in chosen",
                MISTAKES,
                pitfall=35,
            ),
            Mistake(
                "The length penalty is applied at every step and again at the end: divide the sum only once, for the "
                "score.",
                "log_p + more)",
                "(log_p + more) / length_penalty(len(ids) + 1, alpha))",
                MISTAKES,
                pitfall=35,
            ),
            Mistake(
                "The length penalty is missing: divide the log-probability by it.",
                "log_p / length_penalty(len(ids), alpha)",
                "log_p",
                f"{CHAPTER}#length-penalty",
            ),
            Mistake(
                "The log-probability is multiplied by the length penalty: divide it.",
                "log_p / length_penalty",
                "log_p * length_penalty",
                f"{CHAPTER}#length-penalty",
            ),
            Mistake(
                "The end token is not counted in the length: count all ids after the start.",
                "length_penalty(len(ids), alpha)",
                "length_penalty(len(ids) - 1, alpha)",
                f"{CHAPTER}#length-penalty",
            ),
            Mistake(
                "A hypothesis is compared by its last id only: add the log-probabilities of all its ids.",
                "log_p + more)",
                "more)",
            ),
            Mistake(
                "Only hypotheses that finish at the last step are kept: add those of each step to the earlier ones.",
                "finished += [",
                "finished = [",
            ),
            Mistake(
                "Another hypothesis takes the place of a finished one: choose `beam` minus the number of finished "
                "hypotheses.",
                "[: beam - len(finished)]",
                "[:beam]",
            ),
            Mistake(
                "The search ends with the first hypothesis that is finished: others may have a better score.",
                "in chosen if ids[-1] != end",
                "in chosen if ids[-1] != end and not finished",
            ),
            Mistake(
                "A live hypothesis is returned although there is a finished one: prefer finished hypotheses.",
                "in finished or live",
                "in finished + live",
            ),
            Mistake(
                "Each live hypothesis gets one continuation: choose among the continuations of all of them.",
                "chosen = continuations[: beam - len(finished)]",
                "parents = [ids for ids, _ in live]\n"
                "        firsts = [next((c for c in continuations if c[0][:-1] == ids)) for ids in parents]\n"
                "        chosen = continuations[:beam] if parents == [[]] else firsts",
            ),
            Mistake(
                "The best hypothesis is chosen by its log-probability: choose by the score.",
                "return max(scored, key=lambda one: one[1])",
                "return max(scored, key=lambda one: one[1] * length_penalty(len(one[0]), alpha))",
            ),
            Mistake(
                "The log-probability is returned: divide it by the length penalty, as in the choice.",
                "return max(scored, key=lambda one: one[1])",
                "ids, score = max(scored, key=lambda one: one[1])\n"
                "    return ids, score * length_penalty(len(ids), alpha)",
            ),
            Mistake(
                "The start id is counted in the length: count the ids after it.",
                "length_penalty(len(ids), alpha)",
                "length_penalty(len(ids) + 1, alpha)",
            ),
            Mistake(
                "The start id is returned: return the ids after it.",
                "scored = [(ids, log_p",
                "scored = [([start, *ids], log_p",
            ),
            Mistake(
                "The end token is removed: it belongs to the result.",
                "scored = [(ids, log_p",
                "scored = [([i for i in ids if i != end], log_p",
            ),
            Mistake(
                "Only the best hypothesis is kept at each step: keep `beam` of them.",
                "continuations[: beam - len(finished)]",
                "continuations[:1]",
            ),
            Mistake(
                "The worst hypothesis is returned: take the one with the largest score.", "return max(", "return min("
            ),
            Mistake("The search ends one step before `max_len`.", "range(max_len)", "range(max_len - 1)"),
            Mistake(
                "`beam` hypotheses stay live until as many are finished: a finished one keeps its place among them.",
                "chosen = continuations[: beam - len(finished)]",
                "chosen = continuations[:beam] if len(finished) < beam else []",
            ),
            Mistake(
                "Of equal continuations, the wrong one is chosen: prefer the better live hypothesis, and then the "
                "smaller id.",
                "continuations.sort(key=lambda one: -one[1])",
                "continuations.reverse()\n        continuations.sort(key=lambda one: -one[1])",
            ),
            Mistake(
                "Of equal continuations, the wrong one is chosen: prefer the better live hypothesis, and then the "
                "smaller id.",
                "key=lambda one: -one[1])",
                "key=lambda one: (-one[1], one[0]))",
            ),
            Mistake(
                "Probabilities are added: add their logarithms, as `next_log_p` returns them.",
                "log_p + more)",
                "log_p + math.exp(more))",
            ),
        ),
    ),
    Exercise(
        n_grams,
        f"{CHAPTER}#bleu-and-what-it-hides",
        lambda: [(["der", "Hund", "der", "Hund", "sieht"], n) for n in (1, 2, 3, 6)],
        (
            Mistake("The last n-gram is missing.", "len(tokens) - n + 1", "len(tokens) - n"),
            Mistake(
                "The n-grams at the end are too short: stop n - 1 tokens before it.",
                "len(tokens) - n + 1",
                "len(tokens)",
            ),
            Mistake(
                "Each n-gram is counted once: count all its occurrences.",
                "Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))",
                "Counter({tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)})",
            ),
            Mistake(
                "Your n-grams do not overlap: begin an n-gram at every token.",
                "range(len(tokens) - n + 1)",
                "range(0, len(tokens) - n + 1, n)",
            ),
            Mistake(
                "The n-grams are texts: return tuples of tokens.",
                "tuple(tokens[i : i + n])",
                "' '.join(tokens[i : i + n])",
            ),
            Mistake(
                "The order of the tokens is lost: do not sort them.",
                "tuple(tokens[i : i + n])",
                "tuple(sorted(tokens[i : i + n]))",
            ),
            Mistake(
                "The n-grams of one token are the tokens themselves: return tuples here too.",
                "tuple(tokens[i : i + n])",
                "tokens[i] if n == 1 else tuple(tokens[i : i + n])",
            ),
        ),
    ),
    Exercise(
        bleu,
        f"{CHAPTER}#bleu-and-what-it-hides",
        lambda: (
            [
                ([text.split() for text in HYPOTHESES[:n]], [text.split() for text in REFERENCES[:n]])
                for n in (1, 2, 3, 4)
            ]
            + [([list("abcd")], [list("abcdef")]), ([list("abcde")], [["x"] * 5]), ([list("ab")], [list("abc")])]
            + [([list("abcdef"), list("ghijk")], [list("abcd"), list("ghijklmno")])]
            + [([list("abcde"), list("abcd")], [list("abcd"), list("abcde")])]
            + [([list("abcdef"), ["a"]], [list("abcdef"), list("ab")])]  # a text without n-grams takes none away
        ),
        (
            Mistake(
                "Repeated n-grams match more often than the reference contains them: count at most as many.",
                "(found & wanted).total()",
                "sum(count for gram, count in found.items() if gram in wanted)",
            ),
            Mistake(
                "This is the mean of the BLEU of sentences: add the counts of all sentences, and divide once.",
                "    matches, totals = [0] * 4, [0] * 4\n",
                "    if len(hypotheses) > 1:\n"
                "        each = [bleu([one], [other]) for one, other in zip(hypotheses, references)]\n"
                "        return sum(each) / len(each)\n"
                "    matches, totals = [0] * 4, [0] * 4\n",
            ),
            Mistake(
                "The brevity penalty is missing, so a short hypothesis gets a score that is too high.",
                " + min(0.0, 1 - r / c)",
                "",
            ),
            Mistake(
                "The score of texts longer than the references rises: limit the factor to 1.",
                "min(0.0, 1 - r / c)",
                "1 - r / c",
            ),
            Mistake(
                "The brevity penalty is for long texts: exchange the lengths of hypotheses and references.",
                "min(0.0, 1 - r / c)",
                "min(0.0, 1 - c / r)",
            ),
            Mistake(
                "The brevity penalty has no exponential: use exp(1 - r / c).",
                "math.exp(mean + min(0.0, 1 - r / c))",
                "math.exp(mean) * min(1.0, c / r)",
            ),
            Mistake(
                "This is the arithmetic mean of the precisions: take the geometric one.",
                "    mean = sum(math.log(m / total) for m, total in zip(matches, totals, strict=True)) / 4\n",
                "    mean = math.log(sum(m / total for m, total in zip(matches, totals, strict=True)) / 4)\n",
            ),
            Mistake(
                "This is the recall: divide by the number of n-grams of the hypotheses, not of the references.",
                "found.total()",
                "wanted.total()",
            ),
            Mistake("BLEU is between 0 and 1 here: multiply by 100.", "100 * math.exp", "math.exp"),
            Mistake(
                "The precisions end at n = 3: take n from 1 to 4.",
                "    mean = sum(math.log(m / total) for m, total in zip(matches, totals, strict=True)) / 4\n",
                "    mean = sum(math.log(m / total) for m, total in zip(matches[:3], totals[:3], strict=True)) / 3\n",
            ),
            Mistake(
                "The root of the product of the precisions is missing: take the fourth root.",
                "strict=True)) / 4",
                "strict=True))",
            ),
            Mistake(
                "A precision of 0 is left out: BLEU must then be 0.",
                "    if 0 in matches:\n        return 0.0\n"
                "    c, r = sum(map(len, hypotheses)), sum(map(len, references))\n"
                "    mean = sum(math.log(m / total) for m, total in zip(matches, totals, strict=True)) / 4\n",
                "    c, r = sum(map(len, hypotheses)), sum(map(len, references))\n"
                "    mean = sum(math.log(m / total) for m, total in zip(matches, totals, strict=True) if m) / 4\n",
            ),
            Mistake(
                "An n-gram of the reference counts only once: count it as often as the reference contains it.",
                "(found & wanted).total()",
                "len(found & wanted)",
            ),
            Mistake(
                "Texts of different pairs match one another: compare each hypothesis with its own reference.",
                "    matches, totals = [0] * 4, [0] * 4\n",
                "    hypotheses, references = [sum(hypotheses, [])], [sum(references, [])]\n"
                "    matches, totals = [0] * 4, [0] * 4\n",
            ),
            Mistake(
                "The brevity penalty is a mean over the texts: compute one penalty from the lengths of all texts "
                "together.",
                "100 * math.exp(mean + min(0.0, 1 - r / c))",
                "100 * math.exp(mean) * sum(\n"
                "        math.exp(min(0.0, 1 - len(b) / len(a))) for a, b in zip(hypotheses, references, "
                "strict=True)\n    ) / len(hypotheses)",
            ),
            Mistake(
                "1 is added to the counts, which is a smoothing: use the counts themselves.",
                "math.log(m / total)",
                "math.log((m + 1) / (total + 1))",
            ),
            Mistake(
                "The fraction of the brevity penalty is inverted: use r / c.",
                "min(0.0, 1 - r / c)",
                "(1 - c / r if c < r else 0.0)",
            ),
        ),
    ),
)
