"""One file of prompts and completions trains every lineage, and `compare` shows them in one table."""

import json
from pathlib import Path
from typing import Any

from glassformer import api
from glassformer.common.chat_messages import ASSISTANT
from glassformer.config.recurrent import RecurrentConfig
from runs import conversation_run, pair_run

RECURRENT = RecurrentConfig(d_embedding=12, d_encoder=8, d_decoder=16, max_len=32)


def write_completions(folder: Path) -> Path:
    """Write the first exchange of made-up conversations as a prompt and its completion."""
    conversations = Path(conversation_run(folder).data.path or "")  # type: ignore[union-attr]
    lines = []
    for line in conversations.read_text().splitlines():
        question, answer, *_ = json.loads(line)["messages"]
        assert answer["role"] == ASSISTANT
        lines.append(json.dumps({"prompt": question["content"], "completion": answer["content"]}) + "\n")
    path = folder / "completions.jsonl"
    path.write_text("".join(lines))
    return path


def test_one_file_trains_every_lineage(tmp_path: Path) -> None:
    path = str(write_completions(tmp_path))
    few: dict[str, Any] = {"max_steps": 2, "eval_every": 2}
    sides = {"source": None, "target": None, "valid_source": None, "valid_target": None, "valid_fraction": 0.2}
    columns = {"path": path, "source_field": "prompt", "target_field": "completion"}
    runs = {
        "decoder": conversation_run(tmp_path, data={"path": path}, **few),
        "encoder-decoder": pair_run(tmp_path, data=sides | columns, **few),
        "recurrent": pair_run(tmp_path, model=RECURRENT, data=sides | columns, **few),
    }
    models = [api.train(run, tmp_path / name).model for name, run in runs.items()]
    rows = api.compare(models, "exact_match", path=path)
    assert [row.name for row in rows] == list(runs)
    assert {row.score_name for row in rows} == {"exact_match"}
    assert all(0 <= row.score <= 100 for row in rows)
