"""A comparison: descriptions of models, numbers and the table."""

import json
from dataclasses import replace

import pytest

from glassformer.common.formatting import count, duration
from glassformer.config.recurrent import AttendAfter, AttendBefore, ModelConfig, NoAttention, RecurrentConfig
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.evaluation.compare import ComparedModel, comparison_table, describe_model

ROW = ComparedModel("ours", "Transformer 3+3 × 256", 7_600_000, 3725.0, 91_200_000, 1.2345, "bleu", 38.456, 12.34)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (TransformerConfig(decoder=Stack(4), d_model=128), "Transformer decoder 4 × 128"),
        (TransformerConfig(encoder=Stack(12), d_model=768), "Transformer encoder 12 × 768"),
        (TransformerConfig(encoder=Stack(6), decoder=Stack(2), d_model=512), "Transformer 6+2 × 512"),
        (RecurrentConfig(cell="lstm", attention=NoAttention()), "LSTM 1+1 × 256, no attention"),
        (
            RecurrentConfig(cell="gru", attention=NoAttention(context_every_step=True)),
            "GRU 1+1 × 256, no attention, context every step",
        ),
        (
            RecurrentConfig(cell="gru", n_layers=2, d_decoder=512, attention=AttendBefore(score="scaled_dot")),
            "GRU 2+2 × 512, scaled dot attention before",
        ),
        (
            RecurrentConfig(cell="rnn", attention=AttendAfter(score="general", input_feeding=True)),
            "RNN 1+1 × 256, general attention after, input feeding",
        ),
        (
            RecurrentConfig(attention=AttendAfter(score="additive", input_feeding=False)),
            "LSTM 1+1 × 256, additive attention after",
        ),
    ],
)
def test_descriptions_of_models(config: ModelConfig, words: str) -> None:
    assert describe_model(config) == words


def test_the_table_is_aligned() -> None:
    rows = [
        ROW,
        replace(ROW, name="a much longer name", kind="GRU", n_parameters=950, score=5.0, sentences_per_s=2345.6),
    ]
    lines = comparison_table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1, "lines have unequal lengths"
    head, first, second = lines
    for title in ("model", "kind"):
        assert head.index(title) in (first.index("ours"), first.index("Transformer"))
    for title, cell in (
        ("parameters", "7,600,000"),
        ("bleu", "38.5"),
        ("sentences/s", "12.3"),
        ("training", "1 h 02 min"),
    ):
        assert head.index(title) + len(title) == first.index(cell) + len(cell), f"{title} must be above {cell}"
    assert second.endswith("2,346") and " 5.0 " in second


def test_a_narrow_table_leaves_out_the_kinds() -> None:
    whole, narrow = comparison_table([ROW]), comparison_table([ROW], 80)
    assert ROW.kind in whole and comparison_table([ROW], 200) == whole
    assert ROW.kind not in narrow and [*whole.replace(ROW.kind, "").replace("kind", "").split()] == narrow.split()


def test_different_scores_have_names_and_unknown_values_a_dash() -> None:
    sparse = replace(
        ROW, score_name="wer", train_seconds=None, train_tokens=None, valid_loss=None, sentences_per_s=None
    )
    lines = comparison_table([ROW, sparse]).splitlines()
    assert " score " in lines[0] and "bleu 38.5" in lines[1] and "wer 38.5" in lines[2]
    assert lines[2].count("–") == 4


def test_rows_survive_json() -> None:
    assert ComparedModel(**json.loads(json.dumps(ROW.to_dict()))) == ROW


def test_numbers_at_the_limits_of_their_units() -> None:
    assert [duration(s) for s in (59.94, 59.96, 3599.4, 3599.6)] == [
        "59.9 s",
        "1 min 00 s",
        "59 min 59 s",
        "1 h 00 min",
    ]
    assert [count(n) for n in (0, 999, 1000, 999_999, 1_000_000_000)] == ["0", "999", "1.0 k", "1.0 M", "1.0 G"]
