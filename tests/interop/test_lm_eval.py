"""lm-evaluation-harness: glassformer's model class and its own `hf` give equal scores and texts."""

import functools
import json
import math
import sys
import types
from collections import Counter
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import late
from configs import randomise
from glassformer import api
from glassformer.errors import UserError
from glassformer.inference.score import windows
from glassformer.interop.importing import import_model
from glassformer.interop.lm_eval.__main__ import main
from glassformer.reporting import Outcome
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import MODEL_FILES, read_model, weights_of, write_model_files
from runs import pair_run
from tokenization import families
from tolerances import NETWORK, near

from .conftest import DOCS, MAX_LEN, Twins

late.optional("lm_eval")

pytestmark = pytest.mark.filterwarnings("ignore")  # internal warnings of the harness and `datasets`

REQUESTS = [
    ("The statement", " is executed"),
    ("The statement ", "is executed"),
    ("The statement", " is"),
    ("The statement", " was"),
    ("", "In the beginning"),
    ("a\n", "b"),
    (DOCS[:900], " and so on"),
    ("x = 1", DOCS[2000:2060]),
]


@pytest.fixture(autouse=True)
def no_description_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness adds one to its results, and starts `pip list` and others for it: 3 s of processor time."""
    monkeypatch.setattr("torch.utils.collect_env.get_pretty_env_info", str)


@pytest.fixture(scope="session")
def hf(twins: Twins) -> Any:
    """The harness's own model class. It imports accelerate, which it needs only to load a model by name."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("accelerate") is None:
            for name in ("accelerate", "accelerate.utils"):
                module: Any = types.ModuleType(name)
                module.__spec__ = ModuleSpec(name, None)
                module.__getattr__ = lambda name: None
                patch.setitem(sys.modules, name, module)
        from lm_eval.models.huggingface import HFLM
    return HFLM(pretrained=twins.theirs, tokenizer=twins.tokenizer, batch_size=3)


@pytest.fixture(scope="session")
def ours(twins: Twins) -> Any:
    from glassformer.interop.lm_eval.harness import GlassformerLM

    end = twins.tokenizer.eos_token_id  # the prefix of `hf` before the first token
    return GlassformerLM(str(twins.folder), device="cpu", batch_size=3, prefix_token_id=end)


def instances(kind: str, arguments: list[Any]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, args, i, metadata=("made up", i, 1)) for i, args in enumerate(arguments)]


def with_greedy(hf: Any) -> list[tuple[str, str]]:
    """Return the requests, and some whose continuation is the greedy output."""
    texts = ["The statement is", "def f(x):\n", "x"]
    written = hf.generate_until(instances("generate_until", [(text, {"max_gen_toks": 4}) for text in texts]))
    return REQUESTS + list(zip(texts, written, strict=True))


def test_loglikelihoods_and_greedy_flags_equal_hf(hf: Any, ours: Any) -> None:
    requests = instances("loglikelihood", with_greedy(hf))
    expected = hf.loglikelihood(requests)
    assert {is_greedy for _, is_greedy in expected} == {True, False}
    for batched in (3, 1, "auto"):
        ours.batch_size, ours.is_auto = 64 if batched == "auto" else batched, batched == "auto"
        found = ours.loglikelihood(requests)
        assert [log_prob for log_prob, _ in found] == near([log_prob for log_prob, _ in expected], terms=NETWORK)
        assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]


def test_rolling_loglikelihoods_equal_hf(hf: Any, ours: Any) -> None:
    texts = [DOCS[:1500], DOCS[5000:5040], "x", DOCS[7000:7400], ""]
    requests = instances("loglikelihood_rolling", [(text,) for text in texts])
    found, expected = ours.loglikelihood_rolling(requests), hf.loglikelihood_rolling(requests)
    assert found == near(expected, terms=NETWORK) and found[-1] == 0
    for mine, other, text in zip(found, expected, texts[:-1], strict=False):
        n_bytes = len(text.encode())
        assert math.exp(-mine / n_bytes) == near(math.exp(-other / n_bytes))


def test_start_tokens_of_the_tokenizer_are_used(hf: Any, tmp_path: Path) -> None:
    """Llama adds `<s>` before every context, and before a text without context."""
    import transformers

    from glassformer.interop.lm_eval.harness import GlassformerLM

    rust, roles = families.llama_3([DOCS])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, **{f"{role}_token": token for role, token in roles.items()}
    )
    sizes = {"hidden_size": 16, "intermediate_size": 22, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": fast.bos_token_id, "eos_token_id": fast.eos_token_id, "max_position_embeddings": MAX_LEN}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(fast), **sizes, **ids)).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "hf")
    fast.save_pretrained(tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    ours = GlassformerLM(str(tmp_path / "ours"), device="cpu")
    other = type(hf)(pretrained=theirs, tokenizer=fast, batch_size=3)
    requests = instances("loglikelihood", [("The statement", " is"), ("", "In the beginning"), ("a\n", "b")])
    found, expected = ours.loglikelihood(requests), other.loglikelihood(requests)
    assert [x for x, _ in found] == near([x for x, _ in expected], terms=NETWORK)
    alone = ours.loglikelihood_rolling(instances("loglikelihood_rolling", [("In the beginning",)]))
    model = api.load(tmp_path / "ours", device="cpu")
    assert alone == near([expected[1][0]], terms=NETWORK)
    assert model.score("In the beginning").log_prob == near(expected[1][0], terms=NETWORK)
    assert model.score("The statement", " is").log_prob == near(expected[0][0], terms=NETWORK)


CHATML = (
    "{% for m in messages %}{% if m.role == 'system' and 'refuse' in m.content %}{{ raise_exception('no') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ TEXT }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {"plain": CHATML.replace("TEXT", "m.content")}
TEMPLATES["start"] = "{{ bos_token }}" + CHATML.replace("TEXT", "m.content | trim")
CHATS = [
    [{"role": "user", "content": "The statement"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The <|im_end|> statement "}],
    [{"role": "system", "content": "refuse"}, {"role": "user", "content": "x = 1"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\n"}, {"role": "user", "content": "def"}],
]


@pytest.fixture(scope="module", params=TEMPLATES)
def chatting(hf: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The harness's own model and glassformer's, with a chat template and two end tokens.

    The second end token has a higher logit than the token that the model generates most.
    """
    import transformers

    from glassformer.interop.lm_eval.harness import GlassformerLM

    rust, roles = families.llama_3([DOCS])
    rust.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, **{f"{role}_token": token for role, token in roles.items()}
    )
    fast.chat_template = TEMPLATES[request.param]
    sizes = {"hidden_size": 16, "intermediate_size": 22, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": fast.bos_token_id, "eos_token_id": fast.eos_token_id, "max_position_embeddings": 400}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(fast), **sizes, **ids)).eval()
    randomise(theirs)
    first = type(hf)(pretrained=theirs, tokenizer=fast)
    chats = [(first.apply_chat_template(chat), {"max_gen_toks": 12, "until": ["never"]}) for chat in CHATS]
    written = [fast.encode(text, add_special_tokens=False) for text in first.generate_until(instances("", chats))]
    (often, _), *_ = Counter(i for row in written for i in row).most_common()
    end = rust.token_to_id("<|im_end|>")
    with torch.no_grad():
        theirs.lm_head.weight[end] = 1.01 * theirs.lm_head.weight[often]
    theirs.generation_config.eos_token_id = [fast.eos_token_id, end]
    folder = tmp_path_factory.mktemp("chatting")
    theirs.save_pretrained(folder / "hf")
    fast.save_pretrained(folder / "hf")
    import_model(folder / "hf", folder / "ours", log=lambda text: None)
    assert read_model(folder / "ours").generation.end_ids == (end,)
    other = type(hf)(pretrained=theirs, tokenizer=fast, batch_size=1)
    return other, GlassformerLM(str(folder / "ours"), device="cpu", batch_size=3)


def test_conversations_equal_hf(chatting: tuple[Any, Any]) -> None:
    """Texts, log-likelihoods and answers; a special token in a text is ordinary text until the template is applied."""
    hf, ours = chatting
    prompt = "<|im_start|>user\n"
    ordinary = ours.tok_encode(prompt)
    assert len(ordinary) > len(hf.tok_encode(prompt, add_special_tokens=False))
    texts = [ours.apply_chat_template(chat) for chat in CHATS]
    assert texts == [hf.apply_chat_template(chat) for chat in CHATS]
    for answer in ("", "Answer:", " Answer: "):
        chat = [*CHATS[1], {"role": "assistant", "content": answer}]
        continued = ours.apply_chat_template(chat, add_generation_prompt=False)
        assert continued == hf.apply_chat_template(chat, add_generation_prompt=False)
        texts.append(continued)
    for text in (prompt, *texts):
        assert ours.tok_encode(text) == hf.tok_encode(text, add_special_tokens=False)
    pairs = instances("loglikelihood", [(text, target) for text in texts for target in (" is executed", "was")])
    found, expected = ours.loglikelihood(pairs), hf.loglikelihood(pairs)
    assert [x for x, _ in found] == near([x for x, _ in expected], terms=NETWORK)
    asked = instances("generate_until", [(text, {"max_gen_toks": 20, "until": ["never"]}) for text in texts])
    answers = ours.generate_until(asked)
    assert answers == hf.generate_until(asked)
    assert any(len(ours.tok_encode(text)) < 20 for text in answers), "the second end token must end an answer"


def test_tasks_with_a_chat_template_equal_hf(
    chatting: tuple[Any, Any], tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    options = {"num_fewshot": 1, "fewshot_as_multiturn": True, "apply_chat_template": True}
    found, expected = (
        simple_evaluate(model, tasks=["which_follows"], task_manager=manager, bootstrap_iters=0, **options)
        for model in chatting
    )
    rows, others = (result["samples"]["which_follows"] for result in (found, expected))
    assert "<|im_start|>assistant" in rows[0]["arguments"][0][0]
    assert [row["arguments"] for row in rows] == [row["arguments"] for row in others]
    for row, other in zip(rows, others, strict=True):
        pairs = zip(row["filtered_resps"], other["filtered_resps"], strict=True)
        assert all(mine[0] == near(theirs[0], terms=NETWORK) for mine, theirs in pairs)


def test_chat_templates_that_cannot_be_used(chatting: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = chatting
    template = ours.model.conversation_encoder.template
    assert ours.chat_template(True) == template.source
    with pytest.raises(UserError, match="--apply_chat_template tools: remove the name"):
        ours.chat_template("tools")
    monkeypatch.setattr(
        ours.model.conversation_encoder, "template", replace(template, source="{{ raise_exception() }}")
    )
    with pytest.raises(UserError, match="cannot render these messages"):
        ours.apply_chat_template(CHATS[0])
    monkeypatch.setattr(ours.model.conversation_encoder, "template", replace(template, source="nothing"))
    with pytest.raises(UserError, match="leaves out the last message"):
        ours.apply_chat_template(CHATS[0], add_generation_prompt=False)


def test_requests_from_the_cache_are_conversations(ours: Any) -> None:
    """Then the harness renders none, and reads only the name of the tokenizer."""
    assert not ours.is_chat and ours.tokenizer_name == ours.model.tokenizer.fingerprint and ours.is_chat
    ours.is_chat = False


def test_a_trained_start_token_precedes_every_context(twins: Twins, tmp_path: Path) -> None:
    """A recorded start token precedes every context; without a record the first token is not scored."""
    from glassformer.interop.lm_eval.harness import GlassformerLM

    requests = instances("loglikelihood", [("", "In the beginning"), ("The statement", " is"), ("", "x")])
    rolling = instances("loglikelihood_rolling", [("In the beginning",)])
    unstarted = GlassformerLM(str(twins.folder), device="cpu")
    model = unstarted.model
    expected = [model.score("In the beginning"), model.score("The statement", " is"), model.score("x")]
    assert [s for s, _ in unstarted.loglikelihood(requests)] == near([s.log_prob for s in expected], terms=NETWORK)
    assert unstarted.loglikelihood_rolling(rolling) == near([expected[0].log_prob], terms=NETWORK)
    stored = read_model(twins.folder)
    config = replace(stored.config, decoder_start_id=stored.tokenizers.target.eos_id)
    (tmp_path / "started").mkdir()
    write_model_files(
        tmp_path / "started", weights_of(stored.network), stored.tokenizers, replace(stored.run, model=config)
    )
    Manifest.of(tmp_path / "started", "model", 0, MODEL_FILES).write(tmp_path / "started")
    started = GlassformerLM(str(tmp_path / "started"), device="cpu")
    first, second, third = (
        started.model.score(*text) for text in (["In the beginning"], ["The statement", " is"], ["x"])
    )
    assert first.n_tokens == expected[0].n_tokens + 1 and second.log_prob != expected[1].log_prob
    found = [log_prob for log_prob, _ in started.loglikelihood(requests)]
    assert found == near([first.log_prob, second.log_prob, third.log_prob], terms=NETWORK)
    assert started.loglikelihood_rolling(rolling) == near([first.log_prob], terms=NETWORK)


@pytest.mark.parametrize("n", [0, 1, 4, 5, 8, 9, 30])
def test_windows_equal_the_harness(n: int) -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    ids = list(range(n))
    theirs = get_rolling_token_windows(ids, prefix_token=99, max_seq_len=4, context_len=1)
    assert list(windows(ids, [99], 4)) == [make_disjoint_window(window) for window in theirs]


def test_greedy_generations_equal_hf(hf: Any, ours: Any) -> None:
    texts = ["The statement", "def f(x):\n", "x", DOCS[:900], "a much longer prompt, so that rows differ"]
    plain = hf.generate_until(instances("generate_until", [(text, {"max_gen_toks": 20}) for text in texts]))
    stops = [[text[len(text) // 2 :][:2]] for text in plain]
    assert all(any(stop) for stop in stops)
    asked = [(text, {"until": until, "max_gen_toks": 20}) for text, until in zip(texts, stops, strict=True)]
    asked += [(text, {"until": ["never"], "max_gen_toks": n, "do_sample": False}) for text in texts for n in (1, 9)]
    requests = instances("generate_until", asked)
    found = ours.generate_until(requests)
    assert found == hf.generate_until(requests)
    assert found[:5] == [text.split(stop)[0] for text, (stop,) in zip(plain, stops, strict=True)]


def test_repeated_requests_draw_different_reproducible_samples(ours: Any) -> None:
    settings = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 12}
    requests = instances("generate_until", [("The", settings)] * 6 + [("The", {"max_gen_toks": 12})])
    found = ours.generate_until(requests)
    assert len(set(found[:6])) == 6 and found == ours.generate_until(requests)
    cold = ours.generate_until(instances("generate_until", [("The", settings | {"top_k": 1})]))
    assert cold == found[6:], "the task's settings must be used"


def test_a_long_context_is_cut_with_a_warning(ours: Any, caplog: pytest.LogCaptureFixture) -> None:
    ours.loglikelihood(instances("loglikelihood", [REQUESTS[0], REQUESTS[6]]))
    assert f"1 of 2 contexts are left-truncated to fit {MAX_LEN} tokens" in caplog.text


def test_errors_are_one_sentence(ours: Any, twins: Twins, trained: Outcome, tmp_path: Path) -> None:
    from glassformer.interop.lm_eval.harness import GlassformerLM

    def refused(words: str, **arguments: Any) -> None:
        with pytest.raises(UserError, match=words):
            GlassformerLM(**arguments)

    refused("give --model_args path=DIR")
    refused("unknown model argument 'stepp': did you mean step?", path=str(twins.folder), stepp=3)
    refused("batch_size: expected a number of rows or auto, got 'many'", path=str(twins.folder), batch_size="many")
    refused("prefix_token_id: expected 0 to 329, got 330", path=str(twins.folder), prefix_token_id=330)
    refused("no such model directory", path=str(tmp_path / "none"))
    refused("no checkpoint of step 7", path=str(trained.folder), step=7)
    assert GlassformerLM(str(trained.folder), step=10, device="cpu").model.folder == trained.folder
    pairs = api.train(pair_run(tmp_path, max_steps=1), tmp_path / "pairs")
    refused(r"is not a causal language model \(objective seq2seq\)", path=str(pairs.folder))
    for settings, words in (
        ({}, f"up to 256 new tokens, but the model's context is {MAX_LEN}"),
        ({"max_gen_toks": 5, "num_beams": 4}, "setting num_beams is not supported"),
    ):
        with pytest.raises(UserError, match=words):
            ours.generate_until(instances("generate_until", [("a", settings)]))
    assert ours.generate_until(instances("generate_until", [("a", {"max_gen_toks": 5, "num_beams": 1})]))
    with pytest.raises(UserError, match="48"):
        ours.loglikelihood(instances("loglikelihood", [("a", DOCS[:900])]))
    with pytest.raises(UserError, match="no chat template"):
        ours.apply_chat_template([])


def test_model_arguments_go_before_the_flags(twins: Twins) -> None:
    from glassformer.interop.lm_eval.harness import GlassformerLM

    flags = {"device": "cpu", "batch_size": 1, "max_batch_size": None}
    assert GlassformerLM.create_from_arg_string(f"path={twins.folder}", flags).batch_size == 1
    both = GlassformerLM.create_from_arg_string(f"path={twins.folder},batch_size=auto,prefix_token_id=7", flags)
    assert (both.batch_size, both.is_auto, both.prefix_token_id) == (64, True, 7)


FOLLOWS = """
task: which_follows
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: label
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
PERPLEXITY = """
task: docs_perplexity
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{context}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Two tasks on Python's documentation: choose the next of four sentences, and compute the perplexity."""
    sentences = [sentence.strip() + "." for sentence in DOCS.replace("\n", " ").split(". ") if 25 < len(sentence) < 70]
    rows = []
    for i in range(16):
        choices = [sentences[(i + 1 + 7 * k) % len(sentences)] for k in range(4)]
        label = i % 4
        choices[0], choices[label] = choices[label], choices[0]
        rows.append({"context": sentences[i], "choices": choices, "label": label})
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "follows.yaml").write_text(FOLLOWS.format(data=data))
    (folder / "perplexity.yaml").write_text(PERPLEXITY.format(data=data))
    return folder


def test_custom_tasks_from_the_command_line(
    twins: Twins,
    hf: Any,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The documented command, in this process. It does not read the 14,000 tasks of the harness, which takes 10 s."""
    import lm_eval.tasks
    from lm_eval import simple_evaluate

    manager_of = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager_of)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    words = [
        "lm_eval",
        "--model",
        "glassformer",
        "--model_args",
        f"path={twins.folder},batch_size=auto,prefix_token_id={twins.tokenizer.eos_token_id}",
    ]
    names = ["which_follows", "docs_perplexity"]
    words += ["--include_path", str(tasks), "--tasks", *names]
    words += ["--output_path", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0
    printed = capsys.readouterr()
    assert "which_follows" in printed.out and "bits_per_byte" in printed.out
    assert "glassformer: loglikelihood" in printed.err, "progress must be printed"
    (file,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(file.read_text())["results"]

    manager = manager_of(include_path=str(tasks))
    expected = simple_evaluate(hf, tasks=names, task_manager=manager, bootstrap_iters=0)["results"]
    for task, scores in (
        ("which_follows", ("acc,none", "acc_norm,none")),
        ("docs_perplexity", ("word_perplexity,none", "byte_perplexity,none", "bits_per_byte,none")),
    ):
        for score in scores:
            assert found[task][score] == near(expected[task][score], terms=NETWORK), score


def test_a_missing_harness_is_one_sentence_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("lm_eval", "lm_eval.__main__"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main() == 2
    assert capsys.readouterr().err.endswith("pip install 'glassformer[lm-eval]'\n")


def test_an_error_prints_one_sentence_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import lm_eval
    import lm_eval.__main__ as command

    run = lambda: lm_eval.simple_evaluate("glassformer", "path=nowhere", tasks=["any"], device="cpu")  # noqa: E731
    monkeypatch.setattr(command, "cli_evaluate", run)
    assert main() == 2
    assert capsys.readouterr().err.splitlines()[-1] == "glassformer: no such model directory: nowhere"
