"""Contexts in a state: rows that leave and join."""

from configs import random_model
from glassformer.config.run import GenerationConfig
from glassformer.inference.drafts import Reader
from glassformer.inference.rows import Request, Settings, rows_of
from tolerances import assert_close


def test_a_reader_drops_missing_rows_and_takes_new_ones() -> None:
    """The first row is dropped, and the third is new, after the others."""
    model = random_model("llama")
    reader, alone = Reader(model, 24, "cpu"), Reader(model, 24, "cpu")
    settings = Settings(GenerationConfig(), 24)
    first, second, third = (row for ids in ([1], [4], [7]) for row in rows_of(Request(ids, settings)))
    reader.read({first: [1, 2, 3], second: [4, 5]}, [1, 1])
    found = reader.read({second: [4, 5, 6], third: [7, 8, 9]}, [1, 2])
    assert_close(found, alone.read({second: [4, 5, 6], third: [7, 8, 9]}, [1, 2]))
