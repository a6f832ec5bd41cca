"""Chapter 10: the damage of BART and of T5, and the positions of T5."""

import torch

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.solutions.ch10_denoising import infill, relative_bucket, span_corruption

CHAPTER = "course/10-bart-and-t5"
T5 = f"{CHAPTER}#t5-damage-and-write-only-what-is-missing"
BART = f"{CHAPTER}#bart-damage-and-write-the-whole-text-again"
MOVED = "Your list changes with each span, so the places of later spans move: build a new list."
IDS = [11, 12, 13, 14, 15, 16, 17]

EXERCISES = (
    Exercise(
        span_corruption,
        T5,
        lambda: [(IDS, spans, 90) for spans in ([(1, 3), (5, 6)], [(0, 2), (4, 7)], [(2, 3)], [])],
        (
            Mistake(
                "All spans have the same sentinel, so the model cannot know the places of the removed ids: give each "
                "span its own.",
                "in enumerate(spans, first_sentinel)",
                "in ((first_sentinel, span) for span in spans)",
            ),
            Mistake(
                "The target does not have the sentinels: write each one before its span.",
                "[sentinel, *ids[begin:end]]",
                "ids[begin:end]",
            ),
            Mistake(
                "In the target, each sentinel comes after its span: write it before the span.",
                "[sentinel, *ids[begin:end]]",
                "[*ids[begin:end], sentinel]",
            ),
            Mistake(
                "Each removed id has its own sentinel in the input: write one per span.",
                "[*ids[place:begin], sentinel]",
                "[*ids[place:begin], *[sentinel] * (end - begin)]",
            ),
            Mistake(
                "The ids after the last span are missing in the input.",
                "return inputs + ids[place:], targets",
                "return inputs, targets",
            ),
            Mistake(
                "The target ends with one more sentinel, as in the paper: here, leave it out.",
                "return inputs + ids[place:], targets",
                "return inputs + ids[place:], [*targets, first_sentinel + len(spans)]",
            ),
            Mistake(
                "The target is the whole text, as in BART: T5 writes only what is missing.",
                "return inputs + ids[place:], targets",
                "return inputs + ids[place:], ids",
            ),
            Mistake(
                "The numbers of the sentinels fall, as in T5's own vocabulary: here, they must rise.",
                "enumerate(spans, first_sentinel)",
                "((first_sentinel - i, span) for i, span in enumerate(spans))",
            ),
            Mistake(
                "The first sentinel is one too high: count the spans from 0.",
                "enumerate(spans, first_sentinel)",
                "enumerate(spans, first_sentinel + 1)",
            ),
            Mistake(
                "The second number of a span is used as its length: it is the place after the last id.",
                "in enumerate(spans, first_sentinel)",
                "in enumerate(((b, b + e) for b, e in spans), first_sentinel)",
            ),
            Mistake(
                "The id after each span is removed too: the second number is the place after the last id.",
                "*ids[begin:end]]\n        place = end",
                "*ids[begin : end + 1]]\n        place = end + 1",
            ),
            Mistake(
                "The id after each span is in the target too: the second number is the place after the last id.",
                "*ids[begin:end]]",
                "*ids[begin : end + 1]]",
            ),
            Mistake("The ids of a span stay in the input: continue after the span.", "place = end", "place = begin"),
            Mistake(
                "Each part of the input begins with the first id again: continue after the last span.",
                "        place = end\n",
                "",
            ),
            Mistake(
                MOVED,
                "return inputs + ids[place:], targets",
                "inputs = list(ids)\n    for sentinel, (begin, end) in enumerate(spans, first_sentinel):\n"
                "        inputs[begin:end] = [sentinel]\n    return inputs, targets",
            ),
        ),
    ),
    Exercise(
        infill,
        BART,
        lambda: [(IDS, spans, 5) for spans in ([(1, 3), (5, 6)], [(0, 2), (4, 4)], [(7, 7)], [(3, 7)], [])],
        (
            Mistake(
                "Each removed id becomes a mask: write one mask per span, so that the model must find out how many ids "
                "are missing.",
                "[*ids[place:begin], mask_id]",
                "[*ids[place:begin], *[mask_id] * (end - begin)]",
            ),
            Mistake(
                "A span of length 0 is left out: insert a mask for it.",
                "[*ids[place:begin], mask_id]",
                "[*ids[place:begin], *[mask_id] * (end > begin)]",
            ),
            Mistake(
                "The target has only the removed ids, as in T5: BART writes the whole text.",
                "list(ids)\n",
                "[i for begin, end in spans for i in ids[begin:end]]\n",
            ),
            Mistake(
                "The target is the damaged text: return the text before the damage.",
                "list(ids)\n",
                "inputs + ids[place:]\n",
            ),
            Mistake("The ids after the last span are missing in the input.", "inputs + ids[place:]", "inputs"),
            Mistake(
                "Each span has another mask id, as the sentinels of T5: BART has one mask id for all.",
                "for begin, end in spans:",
                "for mask_id, (begin, end) in enumerate(spans, mask_id):",
            ),
            Mistake(
                "The second number of a span is used as its length: it is the place after the last id.",
                "in spans:",
                "in ((b, b + e) for b, e in spans):",
            ),
            Mistake(
                "The id after each span is removed too: the second number is the place after the last id.",
                "place = end",
                "place = end + 1",
            ),
            Mistake("The ids of a span stay in the input: continue after the span.", "place = end", "place = begin"),
            Mistake(
                "Each part of the input begins with the first id again: continue after the last span.",
                "        place = end\n",
                "",
            ),
            Mistake(
                "A span of length 0 removes an id: it only inserts a mask.",
                "place = end",
                "place = max(end, begin + 1)",
            ),
            Mistake(
                MOVED,
                "return inputs + ids[place:], list(ids)",
                "inputs = list(ids)\n    for begin, end in spans:\n        inputs[begin:end] = [mask_id]\n"
                "    return inputs, list(ids)",
            ),
        ),
    ),
    Exercise(
        relative_bucket,
        T5,
        lambda: [(torch.arange(-140, 141), 32, 128), (torch.arange(-9, 10).view(1, 19), 8, 20)],
        (
            Mistake(
                "Keys on the right have the buckets of keys on the left: the buckets of distances above 0 must begin "
                "with H.",
                " + half * (distance > 0)",
                "",
            ),
            Mistake(
                "The directions are exchanged: distances above 0 must have the second half of the buckets.",
                "(distance > 0)",
                "(distance < 0)",
            ),
            Mistake(
                "Distance 0 has a bucket of the second half: it belongs to the first half.",
                "(distance > 0)",
                "(distance >= 0)",
            ),
            Mistake(
                "Every distance has its own bucket, up to the last one: use the logarithm for distances of E and "
                "above.",
                "torch.where(d < n_exact, d, far)",
                "d.clamp(max=half - 1)",
            ),
            Mistake(
                "Distances above the maximum get buckets that do not exist: use the last bucket of the half for all "
                "of them.",
                ".clamp(max=half - 1)",
                "",
            ),
            Mistake(
                "All buckets are used for one direction: each direction must have half of them.",
                "half = n_buckets // 2",
                "half = n_buckets",
            ),
            Mistake(
                "The logarithm is divided by log(max_distance): divide both d and max_distance by E.",
                "math.log(max_distance / n_exact)",
                "math.log(max_distance)",
            ),
            Mistake(
                "The bucket is rounded to the nearest number: round down.",
                "(growth * (half - n_exact)).long()",
                "(growth * (half - n_exact)).round().long()",
            ),
            Mistake(
                "The bucket is rounded up: round down.",
                "(growth * (half - n_exact)).long()",
                "(growth * (half - n_exact)).ceil().long()",
            ),
            Mistake(
                "d is not divided by E in the logarithm: divide d and max_distance by it.",
                "(d.clamp(min=1) / n_exact).log() / math.log(max_distance / n_exact)",
                "d.clamp(min=1).log() / math.log(max_distance)",
            ),
            Mistake(
                "The logarithm is multiplied by H: multiply it by H - E, the number of buckets that are left.",
                "(growth * (half - n_exact))",
                "(growth * half)",
            ),
            Mistake(
                "The buckets of far distances begin with 0 again: add E.",
                "(n_exact + (growth * (half - n_exact)).long())",
                "(growth * (half - n_exact)).long()",
            ),
            Mistake(
                "The sign of the distance stays, so all keys on the left have the same bucket: remove the sign.",
                "distance.abs()",
                "distance",
            ),
        ),
    ),
)
