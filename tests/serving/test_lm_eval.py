"""lm-evaluation-harness has equal numbers by `local-completions` on the server and by `hf` on the export."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import glassformer
import late
from glassformer.inference.score import windows
from glassformer.model import Model
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import MODEL_FILES, read_model, weights_of, write_model_files
from runs import made_up_text
from serving.conftest import Run
from tolerances import NETWORK, near

late.optional("lm_eval")

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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("decoder", {}),
        ("started", {}),
        ("chat", {"apply_chat_template": True, "num_fewshot": 1, "fewshot_as_multiturn": True}),
    ],
)
def test_the_numbers_of_the_server_equal_those_of_the_export(
    name: str,
    options: dict[str, Any],
    tasks: Path,
    tmp_path: Path,
    running: Run,
    models: dict[str, Model],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.setattr("torch.utils.collect_env.get_pretty_env_info", str)  # it starts processes for 3 s
    model = started(models["decoder"], tmp_path / "started") if name == "started" else models[name]
    folder = str(tmp_path / "hf")
    glassformer.export(model.folder, folder, "hf")
    served = LocalCompletionsAPI(
        base_url=f"{running(**{name: model}).address}/v1/completions",
        model=name,
        tokenizer=folder,
        max_length=model.config.max_len + 1,
        add_bos_token=True,
        batch_size=2,
        num_concurrent=3,
    )
    exported = HFLM(pretrained=folder, device="cpu", batch_size=2)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    names = [*TASKS] if not options else ["choices", "answers"]
    found, expected = (
        simple_evaluate(one, tasks=names, task_manager=manager, bootstrap_iters=0, **options)
        for one in (served, exported)
    )
    assert found is not None and expected is not None and found["samples"].keys() == {*names}
    for task in names:
        rows, others = found["samples"][task], expected["samples"][task]
        assert len(rows) == len(others) == 12
        for row, other in zip(rows, others, strict=True):
            assert row["arguments"] == other["arguments"] or task == "answers"
            assert plain(row["filtered_resps"]) == near(plain(other["filtered_resps"]), terms=NETWORK)
        numbers_of_export = numbers(expected["results"][task])
        assert numbers_of_export and numbers(found["results"][task]) == near(numbers_of_export, terms=NETWORK)
    texts = [row["filtered_resps"][0] for row in found["samples"]["answers"]]
    assert any(texts) and len({*texts}) > (name == "decoder")  # the others write one answer


@pytest.mark.parametrize("n", [0, 1, 4, 5, 8, 9, 30])
def test_windows_equal_the_harness(n: int) -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    ids = list(range(n))
    theirs = get_rolling_token_windows(ids, prefix_token=99, max_seq_len=4, context_len=1)
    assert list(windows(ids, [99], 4)) == [make_disjoint_window(window) for window in theirs]


def started(model: Model, folder: Path) -> Model:
    """Return the model as one that learned to start a text after `[BOS]`."""
    stored = read_model(model.folder)
    config = replace(stored.config, decoder_start_id=stored.tokenizers.target.bos_id)
    folder.mkdir()
    write_model_files(folder, weights_of(stored.network), stored.tokenizers, replace(stored.run, model=config))
    Manifest.of(folder, "model", 0, MODEL_FILES).write(folder)
    return glassformer.load(folder)


def numbers(results: dict[str, Any]) -> dict[str, float]:
    return {key: x for key, x in results.items() if isinstance(x, float)}


def plain(values: Any) -> list[Any]:
    """Return all values of nested lists in their order."""
    if isinstance(values, (list, tuple)):
        return [one for value in values for one in plain(value)]
    return [values]
