"""lm-evaluation-harness by `local-completions` has the numbers of glassformer's own model class."""

import json
from pathlib import Path
from typing import Any

import pytest

from glassformer.model import Model
from runs import made_up_text
from serving.conftest import Serve
from tolerances import NETWORK, near

pytestmark = pytest.mark.filterwarnings("ignore")  # internal warnings of the harness and `datasets`

TASKS = {
    "choices": """
        output_type: multiple_choice
        doc_to_text: "{{context}}"
        doc_to_choice: choices
        doc_to_target: label
        metric_list: [{metric: acc}, {metric: acc_norm}]
    """,
    "answers": """
        output_type: generate_until
        doc_to_text: "{{context}}"
        doc_to_target: "{{choices[label]}}"
        generation_kwargs: {until: ["e", "ab"], max_gen_toks: 12, do_sample: false}
        metric_list: [{metric: exact_match}]
    """,
    "perplexity": """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{context}}"
        metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}]
    """,
}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Three tasks on made-up words: choose a word, write one, and compute the perplexity."""
    lines, folder = made_up_text().splitlines(), tmp_path / "tasks"
    folder.mkdir()
    rows = []
    for i in range(12):
        choices = [f" {lines[i].split()[k]}" for k in range(3)]
        rows.append({"context": lines[i + 1][: 4 + i % 7], "choices": choices, "label": i % 3})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        lines = "\n".join(line.strip() for line in text.strip().splitlines())
        data = f"dataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}"
        (folder / f"{name}.yaml").write_text(f"task: {name}\ndataset_path: json\n{data}\ntest_split: test\n{lines}\n")
    return folder


def test_the_numbers_equal_those_of_the_adapter(
    tasks: Path, tmp_path: Path, serve: Serve, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers
    from lm_eval import simple_evaluate
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    from glassformer.interop.lm_eval.harness import GlassformerLM

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("torch.utils.collect_env.get_pretty_env_info", str)  # it starts processes for 3 s
    model = models["decoder"]
    model.save(tmp_path / "decoder")
    end = model.tokenizer.id_to_token(model.tokenizer.eos_id)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "decoder" / "tokenizer.json"), eos_token=end, clean_up_tokenization_spaces=False
    )
    fast.save_pretrained(tmp_path / "tokenizer")
    served = LocalCompletionsAPI(
        base_url=f"{serve('decoder')}/v1/completions",
        model="decoder",
        tokenizer=str(tmp_path / "tokenizer"),
        tokenizer_backend="huggingface",
        max_length=model.config.max_len + 1,
        batch_size=2,
        num_concurrent=3,
    )
    own = GlassformerLM(str(tmp_path / "decoder"), device="cpu", prefix_token_id=model.tokenizer.eos_id)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found, expected = (
        simple_evaluate(one, tasks=[*TASKS], task_manager=manager, bootstrap_iters=0) for one in (served, own)
    )
    assert found is not None and expected is not None and found["samples"].keys() == TASKS.keys()
    for name in TASKS:
        rows, others = found["samples"][name], expected["samples"][name]
        assert len(rows) == len(others) == 12
        for row, other in zip(rows, others, strict=True):
            assert row["arguments"] == other["arguments"] or name == "answers"
            assert plain(row["filtered_resps"]) == near(plain(other["filtered_resps"]), terms=NETWORK)
        own_numbers = numbers(expected["results"][name])
        assert own_numbers and numbers(found["results"][name]) == near(own_numbers, terms=NETWORK)
    texts = [row["filtered_resps"][0] for row in found["samples"]["answers"]]
    assert len({*texts}) > 1 and any(texts)


def numbers(results: dict[str, Any]) -> dict[str, float]:
    return {key: x for key, x in results.items() if isinstance(x, float)}


def plain(values: Any) -> list[Any]:
    """Return all values of nested lists in their order."""
    if isinstance(values, (list, tuple)):
        return [one for value in values for one in plain(value)]
    return [values]
