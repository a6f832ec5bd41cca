"""Preferences from records: their forms, what is skipped, and how they become rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from glassformer.common.errors import UserError
from glassformer.config.run import PreferenceData
from glassformer.data.conversations import Preference, PreferenceCorpus
from glassformer.data.in_memory import place_of
from glassformer.data.kinds import look_at
from glassformer.data.rows import PreferenceRows
from glassformer.tokenization.conversations import ConversationEncoder, with_template
from glassformer.tokenization.tokenizer import Tokenizer


def says(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


ASKED, GOOD, BAD = says("user", "1+1?"), says("assistant", "2"), says("assistant", "3")
FORMS: dict[str, dict[str, Any]] = {
    "texts": {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
    "messages": {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
    "whole conversations": {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    "whole conversations beside a prompt": {"prompt": "1+1?", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
}


def data_of(folder: Path, *records: dict[str, Any]) -> PreferenceData:
    path = folder / "preferences.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return PreferenceData(path=str(path))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_record_is_the_same_preference(form: str, tmp_path: Path) -> None:
    [found] = PreferenceCorpus(data_of(tmp_path, FORMS[form])).whole()
    assert found == Preference((ASKED,), (GOOD,), (BAD,))
    with place_of([FORMS[form]], PreferenceData()) as place:
        assert PreferenceCorpus(PreferenceData(path=str(place))).whole() == [found]


def test_a_table_has_preferences(tmp_path: Path) -> None:
    path = tmp_path / "preferences.tsv"
    path.write_text("prompt\tchosen\trejected\n1+1?\t2\t3\n", "utf-8")
    assert PreferenceCorpus(PreferenceData(path=str(path))).whole() == [Preference((ASKED,), (GOOD,), (BAD,))]


def test_records_without_two_different_answers_are_skipped_and_counted(tmp_path: Path) -> None:
    equal, short = {"prompt": "a", "chosen": "b", "rejected": "b"}, {"chosen": [ASKED, GOOD], "rejected": [ASKED]}
    corpus = PreferenceCorpus(
        data_of(tmp_path, equal, *({**FORMS["texts"], "prompt": str(i)} for i in range(30)), short)
    )
    assert sum(map(len, corpus.split)) == 30
    [note] = corpus.news()
    assert note.startswith("2 preferences have no two different answers and are skipped (the first: ")
    assert note.endswith("preferences.jsonl:1)")


def test_all_answers_to_a_question_are_on_one_side(tmp_path: Path) -> None:
    records = [{"prompt": str(i % 20), "chosen": f"good {i}", "rejected": "bad"} for i in range(100)]
    train, valid = PreferenceCorpus(data_of(tmp_path, *records)).split
    assert valid and not {one.question[0]["content"] for one in train} & {one.question[0]["content"] for one in valid}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"chosen": "2", "rejected": "3"}, ":1 has no field 'prompt'; it has 'chosen', 'rejected'"),
        ({"prompt": "1", "chosen": "2"}, ":1 has no field 'rejected'"),
        ({"prompt": "1", "chosen": "2", "rejected": 3}, "rejected: expected a list of"),
        ({"prompt": "1", "chosen": [ASKED, GOOD], "rejected": "3"}, "must answer the same messages, and message 1"),
        ({"prompt": "1", "chosen": [{"role": "assistant"}], "rejected": "3"}, "content of message 1 must be a text"),
        ({"prompt": "1", "chosen": "\ud800", "rejected": "3"}, "lone surrogate"),
    ],
)
def test_a_damaged_record_is_refused_with_its_place(record: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = data_of(tmp_path, record)
    with pytest.raises(UserError, match=message):
        PreferenceCorpus(data).whole()
    with pytest.raises(UserError, match=message):
        look_at(data)


def test_only_the_answers_after_the_question_are_scored(tmp_path: Path) -> None:
    encoder = ConversationEncoder(
        with_template(Tokenizer.train(["user assistant\n12+?3"], vocab_size=0, scheme="char")), "the model"
    )
    rows = PreferenceRows(encoder, max_ids=60)
    question = (ASKED, BAD, says("user", "?"))
    [row] = rows.encode([Preference(question, (GOOD,), (BAD,)), Preference(question * 3, (GOOD,), (BAD,))])
    assert row.labels is not None and row.document_ids is not None
    scored = row.labels >= 0
    assert encoder.tokenizer.tokens(row.labels[scored]) == ["2", "<|im_end|>", "3", "<|im_end|>"]
    assert row.document_ids[scored].tolist() == [0, 0, 1, 1]
    assert str(rows).endswith("1 are left out: an answer ends after 60 tokens")
