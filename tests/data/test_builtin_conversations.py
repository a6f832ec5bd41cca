"""Built-in conversations: the parts, the facts, and the fields that preferences and rewards read."""

from collections import defaultdict

import pytest

from glassformer.config.run import ConversationData, PreferenceData, PromptData
from glassformer.data import builtin, builtin_records
from glassformer.data.conversations import ConversationCorpus, PreferenceCorpus, PromptCorpus

NAMES = ("characters", "docstring-questions", "sums")


@pytest.mark.parametrize("name", NAMES)
def test_a_question_is_in_one_part_and_the_parts_are_the_whole(name: str) -> None:
    whole = list(builtin.rows(f"builtin:{name}", "conversations"))
    parts = {part: list(builtin.rows(f"builtin:{name}#{part}", "conversations")) for part in builtin.PARTS}
    questions = [row[0] for row in whole]
    assert len(questions) == len(set(questions)) == sum(map(len, parts.values()))
    for part in ("valid", "test"):
        assert 0.07 < len(parts[part]) / len(whole) < 0.13


def test_functions_of_the_test_part_were_learned_from_other_questions() -> None:
    parts = defaultdict(set)
    for (_, answer), part in builtin_records.docstring_questions():
        parts[part].add(answer)
    assert len(parts["test"] & parts["train"]) > 0.98 * len(parts["test"])


def test_all_sums_are_right_in_both_forms() -> None:
    for (asked, completion, short, long), _ in builtin_records.sums():
        a, b = map(int, asked.split(" + "))
        assert int(short) == a + b and long == f"{asked} = {short}" and completion in (short, long)


def test_one_built_in_set_is_read_as_conversations_preferences_and_prompts() -> None:
    train, _ = ConversationCorpus(ConversationData(path="builtin:sums")).split
    assert [message["role"] for message in train[0].messages] == ["user", "assistant"]
    data = PreferenceData(path="builtin:sums", chosen_field="long", rejected_field="short")
    (first, *_), _ = PreferenceCorpus(data).split
    assert first.chosen[0]["content"].endswith(f"= {first.rejected[0]['content']}")
    (prompt, *_), _ = PromptCorpus(PromptData(path="builtin:sums")).split
    assert set(prompt.fields) == {"prompt", "completion", "short", "long"}
