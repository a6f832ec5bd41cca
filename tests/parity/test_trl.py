"""Losses on conversations, preferences and sampled answers equal those of TRL, on the same ids and masks."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import late

os.environ["HF_HUB_OFFLINE"] = "1"

from configs import LLAMA
from glassformer.apps.interop.export import export
from glassformer.common import files
from glassformer.config.run import ConversationConfig, ConversationData, PreferenceConfig, PreferenceData, Run
from glassformer.data.batching import pad
from glassformer.data.conversations import ConversationCorpus, PreferenceCorpus
from glassformer.data.rows import ConversationRows, PreferenceRows
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.preference import GroupPolicyObjective, Rollout
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import read_model, weights_of, write_model_files
from glassformer.tasks.preference import objective_of, with_reference
from glassformer.tokenization.chat_template import CHATML_TOKENS
from glassformer.tokenization.conversations import ConversationEncoder
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from interop.checkpoints import randomise
from tolerances import near

trl = late.optional("trl")
datasets = late.optional("datasets")
transformers = late.optional("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of TRL's own calls

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER = (
    Tokenizer.train(["user assistant"], vocab_size=0, scheme="byte")
    .with_special_tokens(CHATML_TOKENS)
    .with_chat_template(TEMPLATE)
)
ENCODER = ConversationEncoder(TOKENIZER, "the model")
CONFIG = replace(LLAMA, vocab_size=TOKENIZER.vocab_size, max_len=96, pad_id=TOKENIZER.pad_id, eos_id=ENCODER.end_id)
CPU = torch.device("cpu")


def says(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


PREFERENCES = [
    {
        "prompt": says("user", f"{n} · 3?"),
        "chosen": says("assistant", f"It is {3 * n}."),
        "rejected": says("assistant", "?"),
    }
    for n in range(4)
] + [
    {
        "prompt": says("user", "Hi") + says("assistant", "Hello!") + says("user", "Who?"),
        "chosen": says("assistant", "A model."),
        "rejected": says("assistant", "Guess who I could be …"),
    }
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Transformer, Any]]:
    """Two models with different weights, each here and in transformers: the one that is tuned, and the reference."""
    models = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp(f"model{seed}") / "ours"
        network = build_model(CONFIG)
        randomise(network, seed)
        with files.new_folder(folder) as new:
            write_model_files(new, weights_of(network), Tokenizers(TOKENIZER), Run(model=CONFIG))
            Manifest.of(new, "model", 0, [path.name for path in new.iterdir()]).write(new)
        export(folder, folder.with_name("theirs"))
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder.with_name("theirs"))
        models.append((read_model(folder).network, theirs))
    return models


@pytest.fixture(scope="module")
def their_tokenizer(pair: list[tuple[Transformer, Any]]) -> Any:
    return transformers.AutoTokenizer.from_pretrained(pair[0][1].name_or_path)


def written(folder: Path, records: list[dict[str, Any]]) -> str:
    path = folder / "records.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), "utf-8")
    return str(path)


def ids_of(batch: dict[str, torch.Tensor], mask: str) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the ids of each row of TRL's batch, and those that it scores."""
    for ids, real, scored in zip(batch["input_ids"], batch["attention_mask"], batch[mask], strict=True):
        yield ids[real == 1].tolist(), ids[scored > 0].tolist()


@pytest.mark.parametrize("kind", ["dpo", "ipo"])
def test_the_loss_of_preferences(
    kind: str, pair: list[tuple[Transformer, Any]], their_tokenizer: Any, tmp_path: Path
) -> None:
    (ours, theirs), (reference, their_reference) = pair
    # TRL
    args = trl.DPOConfig(
        str(tmp_path), loss_type={"dpo": "sigmoid"}.get(kind, kind), beta=0.3, use_cpu=True, bf16=False, report_to=[]
    )
    trainer = trl.DPOTrainer(
        theirs,
        their_reference,
        args,
        train_dataset=datasets.Dataset.from_list(PREFERENCES),
        processing_class=their_tokenizer,
    )
    batch = trainer.data_collator(list(trainer.train_dataset))
    theirs.eval()
    expected = trainer.compute_loss(theirs, batch)
    # The same records
    data = PreferenceData(path=written(tmp_path, PREFERENCES))
    run = Run(model=CONFIG, data=data, objective=PreferenceConfig(loss=kind, beta=0.3))
    rows = PreferenceRows(ENCODER, CONFIG.max_len).encode(list(PreferenceCorpus(data).records(data, "train")))
    halves = [[row.document_ids == i for row in rows] for i in (0, 1)]
    found = [
        (row.token_ids[half].tolist(), [i for i in row.labels[half].tolist() if i >= 0])
        for side in halves
        for row, half in zip(rows, side, strict=True)
    ]
    assert found == list(ids_of(batch, "completion_mask"))
    objective = objective_of(run)
    compared = objective.collate(with_reference(run, reference, rows, CPU), np.random.default_rng(0))
    sums = objective.loss(ours, compared)
    assert sums.total.item() / sums.n_targets == near(expected.item())
    parts = [objective.loss(ours, compared.rows(range(i, i + 1))).total.item() for i in range(len(rows))]
    assert sum(parts) == near(sums.total.item()), "a preference is one row, so a batch can be divided"


@pytest.mark.parametrize("is_old", [False, True], ids=["one update", "several updates"])
@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_the_loss_of_sampled_answers(
    kind: str, is_old: bool, pair: list[tuple[Transformer, Any]], their_tokenizer: Any, tmp_path: Path
) -> None:
    (ours, theirs), (reference, their_reference) = pair
    prompt, answers = list(range(10, 16)), [[20, 21, 22], [23, ENCODER.end_id], [24, 25, 26, 27, ENCODER.end_id]]
    gains = [0.7, -1.1, 0.4]
    # TRL
    args = trl.GRPOConfig(
        str(tmp_path),
        loss_type=kind,
        beta=0.3,
        epsilon=0.1,
        use_bias_correction_kl=False,  # the KL of the paper, without the ratio
        max_completion_length=6,
        num_generations=3,
        per_device_train_batch_size=3,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    data = datasets.Dataset.from_list([{"prompt": one["prompt"]} for one in PREFERENCES])
    trainer = trl.GRPOTrainer(
        theirs, lambda completions, **_: [0.0] * 3, args, train_dataset=data, processing_class=their_tokenizer
    )
    completions, mask = pad(answers, 0)
    prompts = torch.tensor([prompt] * 3)
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": mask.long(),
        "advantages": torch.tensor(gains),
    }
    theirs.eval()
    with torch.no_grad():
        logits = their_reference(torch.cat((prompts, completions), 1)).logits[:, 5:-1].log_softmax(-1)
    inputs["ref_per_token_logps"] = logits.gather(-1, completions[..., None]).squeeze(-1)
    if is_old:  # the reference stands for the model that wrote the answers
        inputs["old_per_token_logps"] = inputs["ref_per_token_logps"]
    expected = trainer.compute_loss(theirs, inputs)
    # Here
    rollouts = [
        Rollout(np.array(prompt + ids), labels=np.array([-100] * len(prompt) + ids), advantage=gain)
        for ids, gain in zip(answers, gains, strict=True)
    ]
    if is_old:
        before, old = [0.0] * (len(prompt) - 1), inputs["ref_per_token_logps"].tolist()
        rollouts = [
            replace(rollout, old_log_p=np.array(before + log_p[: len(ids)], dtype=np.float32))
            for rollout, ids, log_p in zip(rollouts, answers, old, strict=True)
        ]
    objective = GroupPolicyObjective(reference, 0.3, 6 if kind == "dr_grpo" else None, 0.1)
    sums = objective.loss(ours, objective.collate(rollouts, np.random.default_rng(0)))
    assert sums.total.item() / sums.n_targets == near(expected.item())


def test_the_loss_of_conversations(pair: list[tuple[Transformer, Any]], their_tokenizer: Any, tmp_path: Path) -> None:
    (ours, theirs), _ = pair
    records = [{"messages": one["prompt"] + one["chosen"]} for one in PREFERENCES]
    args = trl.SFTConfig(
        str(tmp_path),
        assistant_only_loss=True,
        max_length=96,
        use_cpu=True,
        bf16=False,
        report_to=[],
        eos_token="<|im_end|>",
    )
    trainer = trl.SFTTrainer(
        theirs, args, train_dataset=datasets.Dataset.from_list(records), processing_class=their_tokenizer
    )
    batch = trainer.data_collator(list(trainer.train_dataset))
    theirs.eval()
    expected = trainer.compute_loss(theirs, batch)
    data = ConversationData(path=written(tmp_path, records))
    run = Run(model=CONFIG, data=data, objective=ConversationConfig())
    rows = ConversationRows(ENCODER, CONFIG.max_len + 1).encode(list(ConversationCorpus(data).records(data, "train")))
    sums = CausalObjective(run.objective.label_smoothing).loss(
        ours, CausalObjective().collate(rows, np.random.default_rng(0))
    )
    assert sums.total.item() / sums.n_targets == near(expected.item())
