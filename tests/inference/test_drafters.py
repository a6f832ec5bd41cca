"""Drafts that are copied from earlier ids."""

import numpy as np

from glassformer.inference.drafts import looked_up


def test_looked_up_ids_follow_the_latest_occurrence_of_the_longest_ending() -> None:
    draw = np.random.default_rng(0)
    for _ in range(1000):
        ids = draw.integers(1, int(draw.integers(3, 9)), size=int(draw.integers(1, 14))).tolist()
        expected: list[int] = []
        for n in (1, 2, 3):
            for end in range(n, len(ids)):
                if ids[end - n : end] == ids[-n:]:
                    expected = (ids[end:] * 8)[:5]
        assert looked_up(ids, 5) == expected
