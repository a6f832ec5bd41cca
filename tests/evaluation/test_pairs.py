"""Pairs grouped by their source."""

from glassformer.evaluation.pairs import group_by_source


def test_groups_keep_the_order_and_every_target() -> None:
    sources, references = group_by_source(["b", "a", "b", "c", "a"], ["1", "2", "3", "4", "2"])
    assert sources == ["b", "a", "c"]
    assert references == [["1", "3"], ["2", "2"], ["4"]]
