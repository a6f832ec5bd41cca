"""The Python interface: load, evaluate and generate with a trained model, and train one."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import glassformer
from glassformer import api
from glassformer.apps.cli.main import run
from glassformer.apps.cli.train import run_for
from glassformer.common.errors import Interrupted, UserError
from glassformer.config import recipes
from glassformer.config.presets import preset
from glassformer.config.run import MaskedConfig, Run, TokenizerConfig
from glassformer.config.train import AdamWConfig
from glassformer.data import own_data
from glassformer.data.batching import Example
from glassformer.inference.drafts import DraftCounts
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.text import never_written
from glassformer.model import Model
from glassformer.models.build import build_model
from glassformer.tasks import language_modeling
from glassformer.tasks.reporting import Outcome
from glassformer.tokenization import Scheme, Tokenizer
from glassformer.tokenization.tokenizer import Tokenizers
from runs import MODEL, Recording, made_up_text, text_run_of, tiny_run, write_documents, write_text
from tokenization import families
from tolerances import near

DRAWN = {"temperature": 1.5, "top_k": 0, "seed": 3, "max_new_tokens": 15}


@pytest.fixture
def model(trained: Outcome) -> Model:
    return api.load(trained.folder, device="cpu")


def test_the_package_exports_the_interface() -> None:
    assert glassformer.load is api.load and glassformer.train is api.train and glassformer.Model is Model


def test_evaluate_gives_the_loss_of_training(trained: Outcome, model: Model) -> None:
    """The trainer's last evaluation, the run's folder and its last checkpoint give exactly the same loss."""
    reported = trained.reports["valid"]
    assert model.evaluate() == reported
    assert api.load(trained.folder, step=20).evaluate() == reported
    assert api.load(trained.folder, step=10).evaluate() != reported
    assert reported.n_tokens > 100 and reported.bits_per_byte is not None


def test_another_text_is_evaluated_whole(model: Model, tmp_path: Path) -> None:
    text = made_up_text(20, seed=9)
    (tmp_path / "other.txt").write_text(text, "utf-8")
    seen: list[tuple[int, int]] = []
    report = model.evaluate(tmp_path / "other.txt", lambda done, total: seen.append((done, total)))
    assert report.n_tokens == len(model.tokenizer.encode(text)) - 1
    assert report.loss > 0 and seen[-1][0] == report.n_tokens
    with pytest.raises(UserError, match="no such file"):
        model.evaluate(tmp_path / "none.txt")


def test_evaluation_needs_a_text(model: Model) -> None:
    nowhere = replace(model, run=replace(model.run, data=replace(model.run.data, path=None)))
    with pytest.raises(UserError, match=r"--data\.path FILE"):
        nowhere.evaluate()


@pytest.mark.parametrize("settings", [{"temperature": 0.0, "max_new_tokens": 15}, DRAWN], ids=["greedy", "drawn"])
def test_pitfall_32_a_batch_of_prompts_equals_each_alone(model: Model, settings: Any) -> None:
    prompts = ["a", "abc def ghi jab ", "é", "日本 🙂"]
    assert model.generate(prompts, **settings) == [model.generate(prompt, **settings) for prompt in prompts]


def test_the_seed_determines_the_sample(model: Model) -> None:
    first, again, other = (model.generate("abc", **(DRAWN | {"seed": seed})) for seed in (1, 1, 2))
    assert first == again != other


def test_pitfall_36_a_stream_equals_the_decoded_ids(model: Model) -> None:
    """An untrained model often draws bytes that are only a part of a character."""
    fresh = replace(model, network=build_model(model.network.config).eval())
    for seed in range(5):
        pieces = [step[0] for step in fresh.stream(["a"], temperature=2.0, seed=seed, max_new_tokens=30)]
        ids: list[int] = []
        drawn = replace(fresh.generation, temperature=2.0, seed=seed, max_new_tokens=30)
        suppress_ids = never_written(fresh.tokenizer, fresh.network.config.vocab_size)
        for step in Generation(fresh.network, [fresh.prompt_ids("a")], Settings(drawn, 32, (), suppress_ids)):
            if step[0] == fresh.tokenizer.eos_id:
                break
            ids.append(step[0])
        assert "".join(pieces) == fresh.tokenizer.decode(ids)


def scripted(model: Model, text: str, **changes: Any) -> Model:
    """Return a model that writes this text byte by byte for every prompt; `changes` apply to its configuration."""
    ids = [model.tokenizer.vocab[token] for token in model.tokenizer.vocab if len(token) == 1]
    by_byte = {model.tokenizer.decode([i]): i for i in ids}
    assert by_byte
    wanted = [next(i for i in ids if model.tokenizer.pieces[i] == bytes([byte])) for byte in text.encode()]

    class Script(torch.nn.Module):
        config = replace(model.network.config, **changes)

        def start(self, n_rows: int, max_len: int) -> Any:
            return model.network.start(n_rows, max_len)

        def step(self, token_ids: Any, state: Any, mask: Any = None) -> Any:
            logits, state = model.network.step(token_ids, state, mask)
            chosen = wanted[min(int(state.lengths[0]) - 1, len(wanted) - 1)]
            return torch.nn.functional.one_hot(torch.tensor(chosen), logits.shape[-1]).expand_as(logits) * 99.0, state

    return replace(model, network=Script())  # type: ignore[arg-type]


def test_pitfall_36_a_character_of_many_bytes_is_streamed_whole(model: Model) -> None:
    writer = scripted(model, "é日🙂x")
    pieces = [step[0] for step in writer.stream(["a"], temperature=0.0, max_new_tokens=10)]
    assert pieces == ["", "é", "", "", "日", "", "", "", "🙂", "x", ""]
    cut = [step[0] for step in writer.stream(["a"], temperature=0.0, max_new_tokens=4)]
    assert cut == ["", "é", "", "", "\ufffd"]  # an incomplete character at the end


@pytest.mark.parametrize(
    ("stop", "expected"), [("日", "é"), ("日🙂", "é"), ("x", "é日🙂"), ("é", ""), ("no", "é日🙂x")]
)
def test_stop_texts_end_the_text_and_are_left_out(model: Model, stop: str, expected: str) -> None:
    writer = scripted(model, "é日🙂x")
    assert writer.generate("a", temperature=0.0, max_new_tokens=10, stop=(stop,)) == expected


SENTENCE = "the cat sat on the mat and the dog ran, to be or not to be. "


def with_tokenizer(model: Model, name: str) -> Model:
    """Return an untrained model with the tokenizer of a scheme, or of a family of models."""
    if name in EVERY_SCHEME:
        tokenizer = Tokenizer.train([SENTENCE * 20], vocab_size=300 if name == "byte" else 60, scheme=name)
    else:
        rust, roles = getattr(families, name)([SENTENCE] * 20, **FAMILIES[name])
        tokenizer = Tokenizer.imported(rust.to_str(), roles)
    torch.manual_seed(0)
    network = build_model(replace(MODEL, vocab_size=tokenizer.vocab_size)).eval()
    of_bytes = torch.tensor([i for token, i in tokenizer.vocab.items() if token.startswith("<0x")], dtype=torch.long)
    # later bytes can make earlier ones invalid UTF-8, so byte tokens are never drawn
    network.output.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, of_bytes, -1e9))
    return replace(model, network=network, tokenizers=Tokenizers(tokenizer))


EVERY_SCHEME = get_args(Scheme)
FAMILIES = {"bert": {"lowercase": True}, "gpt2": {}, "roberta": {}, "llama_2": {"legacy": True}, "t5": {}, "qwen": {}}


@pytest.mark.parametrize("name", [*EVERY_SCHEME, *FAMILIES])
def test_a_prompt_and_its_continuation_equal_the_decoded_ids(model: Model, name: str) -> None:
    """The printed text is the typed prompt and the pieces of the stream."""
    fresh = with_tokenizer(model, name)
    suppress_ids = never_written(fresh.tokenizer, fresh.tokenizer.vocab_size)
    n_spaces = 0
    for seed, prompt in enumerate(["the cat sat", "to be", "the dog ran", "t", "the", "on the mat and"]):
        ids = fresh.prompt_ids(prompt)
        known = fresh.tokenizer.decode(ids)
        assert known == prompt or name == "whole_words"  # an unknown word is [UNK]
        config = replace(fresh.generation, temperature=1.5, seed=seed, max_new_tokens=6)
        end = fresh.tokenizer.eos_id
        ends = [] if end is None else [end]
        banned = [i for i in suppress_ids if i != end]
        steps = Generation(fresh.network, [ids], Settings(config, 32, ends, banned))
        new = [step[0] for step in steps if step[0] not in ends]
        text = fresh.generate(prompt, temperature=1.5, seed=seed, max_new_tokens=6)
        whole = fresh.tokenizer.decode([*ids, *new])
        assert known + text == whole
        assert fresh.generate([ids], temperature=1.5, seed=seed, max_new_tokens=6) == [text]
        n_spaces += text.startswith(" ")
        if fresh.prompt_ids(prompt + " ") == ids and text.startswith(" "):  # the typed space is not repeated
            spaced = fresh.generate([prompt + " "] * 2, temperature=1.5, seed=seed, max_new_tokens=6)
            assert [known + " " + text for text in spaced] == [whole] * 2
    assert n_spaces or name in ("byte", "char", "gpt2", "roberta", "qwen"), "no sample begins with a space"


def test_a_space_at_the_end_of_a_prompt_is_not_repeated(model: Model) -> None:
    fresh = with_tokenizer(model, "bert")
    prompts = ["to be ", "the dog"]
    assert fresh.prompt_ids(prompts[0]) == fresh.prompt_ids("to be"), "the tokenizer drops the space"
    found = fresh.generate(prompts, n=4, temperature=1.5, max_new_tokens=6)
    starts = [[text.startswith(" ") for text in texts] for texts in found]
    assert not any(starts[0]) and any(starts[1])
    assert found == [fresh.generate(prompt, n=4, temperature=1.5, max_new_tokens=6) for prompt in prompts]


def test_the_sample_of_a_run_keeps_the_first_space(model: Model) -> None:
    fresh = with_tokenizer(model, "whitespace")
    row = Example(np.array(fresh.tokenizer.encode(SENTENCE)))
    shown = language_modeling.TASK.sample(
        fresh.network, fresh.tokenizer, replace(fresh.run, model=fresh.config), row, fresh.device
    )
    assert shown.startswith("the cat sat on the mat and the│ ")


def test_samples_of_a_prompt_differ_and_each_can_be_drawn_alone(model: Model) -> None:
    fresh = replace(model, network=build_model(model.network.config).eval())
    prompts = ["abc", "a b c d ", "abc"]
    alone = [fresh.generate(prompt, **DRAWN) for prompt in prompts]
    found = fresh.generate(prompts, n=4, **DRAWN)
    assert [texts[0] for texts in found] == alone, "sample 0 equals the sample without n"
    assert [len(set(texts)) for texts in found] == [4, 4, 4] and found[0] == found[2]
    assert found[1] == fresh.generate(prompts[1], n=4, **DRAWN)
    for i in range(4):
        assert [texts[i] for texts in found] == fresh.generate(prompts, sample=i, **DRAWN)
    assert found[0][2:] == fresh.generate("abc", n=2, sample=2, **DRAWN)
    assert fresh.generate("abc", n=4, **(DRAWN | {"seed": 4})) != found[0]
    slid = DRAWN | {"max_new_tokens": 60, "slide": True}
    assert fresh.generate(prompts, n=3, **slid)[1][2] == fresh.generate(prompts[1], sample=2, **slid)


def test_the_batch_size_does_not_change_the_texts(model: Model) -> None:
    """Rows end at stop texts and at the limit; incomplete characters and parts of a stop text wait for later ids."""
    fresh = replace(model, network=build_model(model.network.config).eval())
    prompts = ["abc", "a b c d ", "é日", "abc", "d", "a", "b c"]
    free = fresh.generate(prompts, n=3, **DRAWN)
    stops = tuple({text[4:6] for texts in free for text in texts if len(text) > 6})[:4]
    settings = DRAWN | {"stop": stops, "n": 3}
    pieces = list(fresh.stream(prompts, **settings))
    streamed = ["".join(row) for row in zip(*pieces, strict=True)]
    assert len(set(map(len, streamed))) > 2
    for batch_size in (1, 2, 5, 32):
        found = fresh.generate(prompts, batch_size=batch_size, **settings)
        assert [text for texts in found for text in texts] == streamed
    how = fresh.text_settings(batch_size=5, **settings)
    ended = [row for row, _ in fresh.writer.finished(fresh.encode_prompts(prompts), *how)]
    assert sorted(ended) == list(range(21)) != ended
    with pytest.raises(UserError, match="batch_size is 0 and must be at least 1"):
        fresh.generate("abc", batch_size=0)


def test_wrong_sample_settings_are_refused(model: Model) -> None:
    with pytest.raises(UserError, match="n is 5 and temperature is 0: all samples would be equal"):
        model.generate("abc", n=5, temperature=0.0)
    for n in (0, -1):
        with pytest.raises(UserError, match=rf"n is {n} and must be at least 1"):
            model.generate("abc", n=n)
    with pytest.raises(UserError, match="sample is -1 and must not be negative"):
        model.generate("abc", sample=-1)


def test_generating_without_a_seed_draws_a_new_one(model: Model) -> None:
    fresh = replace(model, network=build_model(model.network.config).eval())
    texts = {fresh.generate("abc", **(DRAWN | {"seed": None})) for _ in range(4)}
    assert len(texts) > 1


@pytest.mark.parametrize("wrong", [290, 99_999, -1])
def test_an_id_outside_the_vocabulary_is_named(model: Model, wrong: int) -> None:
    with pytest.raises(UserError, match=f"prompt 2 has the id {wrong}, and the vocabulary has 290 tokens"):
        model.generate([[8, 9], [8, wrong]])


def test_drafts_change_no_greedy_text(model: Model) -> None:
    prompts = ["abc", "the the the the", "a", model.prompt_ids("cab") * 3]
    settings: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 40}
    for more in ({}, {"slide": True}, {"stop": ("e", "ab")}, {"repetition_penalty": 1.4}):
        expected = model.generate(prompts, **settings, **more)
        for drafts in ({"prompt_lookup": 5}, {"draft": model}, {"draft": model, "draft_tokens": 9}):
            counts = DraftCounts()
            assert model.generate(prompts, **settings, **more, **drafts, counts=counts) == expected
            assert counts.n_drafted > 0 and ("draft" not in drafts or counts.acceptance_rate == 1)
    assert "".join(model.stream("abc", prompt_lookup=3, **settings)) == model.generate("abc", **settings)


@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_drafts_for_a_list_do_not_depend_on_the_batch_size(model: Model, kind: str) -> None:
    """Greedy texts are those without drafts; sampled ones are those of a larger batch."""
    fresh = replace(model, network=build_model(model.network.config).eval())
    prompts = ["abc", "a b c d ", "é日", "abc", "d d d d", "a", "b c"]
    drafts: dict[str, Any] = {"prompt_lookup": 4} if kind == "lookup" else {"draft": model, "draft_tokens": 3}
    free = fresh.generate(prompts, **DRAWN, n=3, **drafts)
    stops = tuple(text[1 + 3 * i : 3 + 3 * i] for i, text in enumerate(free[0]))  # rows end at different places
    drawn, greedy = DRAWN | {"n": 3, "stop": stops}, {"temperature": 0.0, "max_new_tokens": 20}
    expected, sampled = fresh.generate(prompts, **greedy), fresh.generate(prompts, **drawn, **drafts)
    assert len(set(map(len, itertools.chain(*sampled)))) > 2 and len(set(expected)) > 3
    assert sampled != fresh.generate(prompts, **drawn)
    for batch_size in (1, 3):
        counts = DraftCounts()
        found = fresh.generate(prompts, batch_size=batch_size, counts=counts, **greedy, **drafts)
        assert found == expected and counts.n_drafted > 0
        assert fresh.generate(prompts, batch_size=batch_size, **drawn, **drafts) == sampled


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_drafts_take_every_type_of_weights(trained: Outcome, dtype: str) -> None:
    model, counts = api.load(trained.folder, device="cpu", dtype=dtype), DraftCounts()
    assert len(model.generate("abc", n=3, draft=model, counts=counts, **DRAWN)) == 3
    assert counts.acceptance_rate > 0.9
    assert model.generate(["abc"], n=3, prompt_lookup=4, **DRAWN)[0][1] == model.generate(
        "abc", sample=1, prompt_lookup=4, **DRAWN
    )


def test_a_draft_model_needs_the_same_vocabulary(model: Model, tmp_path: Path) -> None:
    run = replace(tiny_run(write_text(tmp_path), max_steps=1), tokenizer=TokenizerConfig(vocab_size=280))
    other = api.train(run, tmp_path / "other").model
    with pytest.raises(
        UserError, match=r"other and .* have different vocabularies \(280 and 290 tokens\): use a draft"
    ):
        model.generate("abc", draft=other)
    same_size = replace(model, tokenizers=Tokenizers(Tokenizer.train([made_up_text(150, seed=8)], vocab_size=290)))
    with pytest.raises(UserError, match="have different vocabularies"):
        model.generate("abc", draft=same_size)
    with pytest.raises(UserError, match=r"a draft model is given, and prompt_lookup is 2: use one of them"):
        model.generate("abc", draft=model, prompt_lookup=2)
    with pytest.raises(UserError, match=r"draft: expected a Model, such as glassformer.load\(DIR\), got 'runs/small'"):
        model.generate("abc", draft="runs/small")
    masked = api.train(text_run_of(tmp_path, MaskedConfig(), max_steps=1), tmp_path / "masked").model
    with pytest.raises(UserError, match="masked learned to fill masks: use it with fill, not generate"):
        model.generate("abc", draft=masked)


def test_special_tokens_are_never_generated(model: Model) -> None:
    fresh = replace(model, network=build_model(replace(model.network.config, vocab_size=4000)).eval())
    text = fresh.generate(["a"] * 8, temperature=3.0, max_new_tokens=31)
    assert not any(token in "".join(text) for token in model.tokenizer.special_tokens)


def test_pitfall_33_a_too_long_prompt_is_refused_or_slides(model: Model) -> None:
    long = "abc " * 60
    with pytest.raises(UserError, match="tokens and the model's context is 32: shorten it"):
        model.generate(long)
    with pytest.raises(UserError, match="prompt 2 has"):
        model.encode_prompts(["a", long])
    assert model.generate(long, slide=True, max_new_tokens=50)
    model.encode_prompts([long], slide=True)


def test_an_empty_prompt_starts_from_the_trained_start_token_or_is_refused(model: Model) -> None:
    """A single text trains no start token, even if its tokenizer reserves special tokens."""
    assert model.tokenizer.bos_id is not None and model.tokenizer.eos_id is not None
    with pytest.raises(UserError, match="was not trained to start a text"):
        model.prompt_ids("")
    started = scripted(model, "ab", decoder_start_id=model.tokenizer.bos_id)
    assert started.prompt_ids("") == [model.tokenizer.bos_id]
    assert started.prompt_ids("abc") == [model.tokenizer.bos_id, *model.tokenizer.encode("abc")]


def test_a_prompt_may_be_token_ids(model: Model) -> None:
    assert model.generate([model.prompt_ids("abc"), "abc"], **DRAWN) == [model.generate("abc", **DRAWN)] * 2


def test_the_score_of_a_text_equals_its_loss(model: Model) -> None:
    """Without a trained start token the first token is only context; the last window has a full context."""
    text = made_up_text(2)[:60]
    ids = model.tokenizer.encode(text)
    messages: list[str] = []
    score = model.score(text, log=messages.append)
    assert messages == [model.no_start] and "the first token of each text is read and not scored" in messages[0]
    assert 33 < len(ids) < 64, "longer than the context, so the end is read in a second window"
    with torch.no_grad():
        first, last = model.network(torch.tensor([ids[:32], ids[-33:-1]])).log_softmax(-1)
    targets = [first[t, ids[t + 1]] for t in range(32)] + [last[t, ids[t]] for t in range(33 - len(ids), 0)]
    assert score.log_prob == near(float(sum(targets)))
    assert score.n_tokens == len(ids) - 1
    assert score.n_bytes == len(text.encode()) - len(model.tokenizer.pieces[ids[0]])
    assert score.nats_per_token * score.n_tokens == pytest.approx(-score.log_prob)
    alone = [score, model.score("abc", log=messages.append)]
    for one, other in zip(model.score([text, "abc"], log=messages.append), alone, strict=True):
        assert replace(one, log_prob=0.0) == replace(other, log_prob=0.0)
        assert one.log_prob == near(other.log_prob), "kernels round by the shape of a batch"
    assert model.score("abc", " def") == model.score(["abc"], [" def"])[0], "a context needs no start token"
    assert model.score("abc ", "def").n_bytes == 3 and model.score("abc ", "def").log_prob < 0
    with pytest.warns(UserWarning, match="was not trained to start a text"):
        model.score(text)
    encoder = replace(model, run=replace(model.run, objective=MaskedConfig()))
    with pytest.raises(UserError, match="learned to fill masks: use it with fill, not score"):
        encoder.score(text)


def test_empty_lists_give_empty_lists(model: Model) -> None:
    assert model.generate([]) == [] == model.generate([], n=3)
    assert model.score([]) == [] == model.score([], [])


def test_loading_a_missing_model_is_refused(trained: Outcome, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model directory"):
        api.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no checkpoint of step 7; existing steps: 10, 20"):
        api.load(trained.folder, step=7)
    with pytest.raises(UserError, match="device 'cuda:9' is not available"):
        api.load(trained.folder, device="cuda:9")


def test_a_loaded_model_is_ready_to_use(model: Model) -> None:
    assert not model.network.training
    assert model.run.name == "tiny" and model.generation.max_new_tokens == 3
    assert (model.network.config.vocab_size, model.network.config.eos_id) == (290, model.tokenizer.eos_id)


def test_several_documents_train_the_end_token(tmp_path: Path) -> None:
    """An end token follows each of several documents, so the model learns to end a text."""
    reporter = Recording()
    outcome = api.train(tiny_run(write_documents(tmp_path), max_steps=2), tmp_path / "run", reporter)
    loaded = api.load(outcome.folder)
    ends = scripted(loaded, "-ab")  # the start token is read before the prompt
    assert ends.generate("a", temperature=0.0, max_new_tokens=3) == "abb"
    assert MODEL.max_len == loaded.network.config.max_len


def test_evaluating_the_validation_text_equals_the_trainers_loss(tmp_path: Path) -> None:
    """Validation has one document, training has many: the end token that training appends counts here too."""
    valid = tmp_path / "valid.txt"
    valid.write_text(made_up_text(20, seed=9), "utf-8")
    run = tiny_run(write_documents(tmp_path), data={"valid_path": str(valid)})
    outcome = api.train(run, tmp_path / "run")
    model = api.load(outcome.folder)
    assert model.evaluate(valid) == model.evaluate() == outcome.reports["valid"]
    copy = tmp_path / "copy.txt"
    copy.write_bytes(valid.read_bytes())
    assert model.evaluate(copy).n_tokens == model.evaluate().n_tokens - 1


SMALL = {"max_steps": 2, "eval_every": 1, "batch_size": 2, "log_every": 1, "device": "cpu", "n_layers": 1}
SMALL |= {
    "d_model": 16,
    "n_heads": 2,
    "d_ff": 32,
    "model.max_len": 16,
    "tokenizer.vocab_size": 290,
    "precision": "fp32",
}
"""Keys of a run that takes about one second."""


def test_training_on_a_text_file_equals_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run equals that of `glassformer train text.txt`; short names, full names and tables change it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_text(tmp_path)
    outcome = glassformer.train("text.txt", changes=SMALL)
    by_command = recipes.with_changes(run_for("text.txt")[0], SMALL)
    assert outcome.folder == Path("runs/text") and outcome.run.train == replace(by_command.train, compile=False)
    assert outcome.run.generation == by_command.generation == own_data.run_of(str(path))[0].generation
    assert outcome.model.name == "runs/text" and outcome.model is outcome.model
    assert outcome.model.evaluate() == outcome.reports["valid"]
    assert isinstance(outcome.model.generate("abc", max_new_tokens=3), str)
    again = glassformer.resume("runs/text")
    assert again.model.evaluate() == outcome.reports["valid"]
    shown = repr(outcome).splitlines()
    assert len(shown) == 3 and "text" in shown[0] and "valid loss" in shown[1] and "runs/text" in shown[2]


def test_keys_of_a_run_are_keywords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the run are checked without training."""
    seen: list[tuple[Run, Path]] = []

    def launch(run: Run, folder: Path, _: object) -> Outcome:
        seen.append((run, folder))
        return Outcome(folder, {}, run)

    monkeypatch.setattr("glassformer.training.run.train_run", launch)
    monkeypatch.setattr("glassformer.training.checks.check_new_run", lambda run, folder: None)
    adamw = AdamWConfig(learning_rate=0.5)
    glassformer.train("python-docs", max_steps=5, out=str(tmp_path / "a"), init="runs/b", schedule={"warmup_steps": 3})
    glassformer.train("python-docs", changes={"train.max-steps": 5}, optimizer=adamw, data={"path": tmp_path})
    glassformer.train("shakespeare-char", learning_rate=0.5, preset="gpt2", d_model=96, n_heads=4)
    (one, folder), (two, default), (three, _) = seen
    assert (one.train.max_steps, folder, one.init.path) == (5, tmp_path / "a", "runs/b")
    assert one.train.schedule == replace(recipes.load("python-docs").train.schedule, warmup_steps=3)
    assert (two.train.max_steps, two.train.optimizer, two.data.path) == (5, adamw, str(tmp_path))
    assert default == Path("runs/python-docs")
    assert three.train.optimizer.learning_rate == 0.5
    gpt2 = preset("gpt2")
    assert gpt2.decoder is not None
    assert three.model == replace(gpt2, d_model=96, decoder=replace(gpt2.decoder, n_heads=4))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_stepz": 5}, r"unknown key max_stepz: did you mean train\.max_steps\?"),
        ({"changes": {"train.max_stepz": 5}}, r"unknown key train\.max_stepz: did you mean train\.max_steps\?"),
        ({"max_steps": "5"}, r"train\.max_steps must be an integer, not '5'"),
        (
            {"dropout": 0.1},
            r"dropout may mean lora\.dropout or model\.token_dropout or .* or tokenizer\.bpe_dropout: give",
        ),
        ({"kind": "text"}, "python-docs is a recipe or a TOML file, which has a kind of data: leave out kind"),
        ({"changes": {"kind": "adamw"}}, r"kind may mean train\.optimizer\.kind or train\.schedule\.kind"),
        ({"max_steps": 5, "changes": {"train.max_steps": 5}}, r"train\.max_steps is given twice"),
        ({"out": {"train.max_steps": 5}}, "out must be a path .a str or a Path., not dict"),
        ({"init": 5}, "init must be a path"),
        ({"preset": "gtp2"}, "unknown preset 'gtp2': did you mean gpt2"),
    ],
)
def test_wrong_keys_of_a_run_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        glassformer.train("python-docs", **given)


def test_a_wrong_run_is_named() -> None:
    with pytest.raises(UserError, match=r"expected a recipe, a path, a Run, or data \(.*\), got int"):
        glassformer.train(5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"no such file: nowhere/my\.txt"):
        glassformer.train("nowhere/my.txt")
    with pytest.raises(UserError, match="did you mean python-docs"):
        glassformer.train("pyton-docs")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 5}, "unknown key steps: did you mean max_steps, here train.max_steps?"),
        ({"lr": 0.1}, "unknown key lr: did you mean learning_rate, here train.optimizer.learning_rate?"),
        ({"n_layer": 2}, "unknown key n_layer: did you mean n_layers, here model.decoder.n_layers?"),
        ({"n_embd": 64}, "unknown key n_embd: did you mean d_model, here model.d_model?"),
        ({"block_size": 64}, "unknown key block_size: did you mean context, here data.context?"),
        ({"task": "mlm"}, "unknown key task: the recipe decides the task"),
        ({"resume": True}, "unknown key resume: continue a run with"),
        ({"out_dir": "x"}, "unknown key out_dir: the run folder is `out`"),
    ],
)
def test_setting_names_of_other_libraries_give_a_hint(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        glassformer.train(tiny_run(write_text(tmp_path)), tmp_path / "run", **settings)
    assert str(raised.value).startswith(sentence)


def test_a_second_file_is_refused_with_the_names_of_the_sides(tmp_path: Path) -> None:
    for name in ("train.en", "train.de"):
        (tmp_path / name).write_text("a b\n" * 9)
    target = str(tmp_path / "train.de")
    with pytest.raises(
        UserError, match=r"^out is the folder of the run, and .*train\.de is a file: two files of pairs "
    ) as caught:
        glassformer.train(tmp_path / "train.en", target)
    assert f"train(source='train.en', target={target!r})" in str(caught.value)


def test_a_plan_in_python_is_that_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(tmp_path)
    for place in ("gpt2", "python-docs", str(text)):
        assert run(["plan", place, "--gpu", "t4", "--gpus", "2", "--precision", "fp16", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        changed = recipes.with_changes(api.run_to_plan(place, {})[0], {"train.precision": "fp16"})
        planned = glassformer.plan(changed, "t4", 2).to_dict()
        assert planned == shown
    assert glassformer.plan("gpt2").n_parameters == 124_439_808
    assert glassformer.plan(Path(text), "24GB,80TF", mfu=0.5).mfu == 0.5
    with pytest.raises(UserError, match="did you mean h200"):
        glassformer.plan("gpt2", "h20")
    with pytest.raises(UserError, match=r"is named 'gpt3': did you mean gpt2|is named 'gpt3': did you mean gpt"):
        glassformer.plan("gpt3")


def test_attributes_of_other_libraries_give_a_hint(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    for name, instead in {
        "num_parameters": "n_parameters",
        "export": "glassformer.export",
        "perplexity": "score",
    }.items():
        with pytest.raises(AttributeError, match=instead):
            getattr(model, name)
    with pytest.raises(TypeError, match=r"model\.network"):
        model(torch.zeros(1, 2, dtype=torch.long))  # type: ignore[operator]
    with pytest.raises(AttributeError, match="use build_model"):
        glassformer.build_mode  # type: ignore[attr-defined]  # noqa: B018
    for name in ("save_state", "save", "save_checkpoints"):
        with pytest.raises(AttributeError, match=r"use save_checkpoint"):
            getattr(glassformer, name)
    with pytest.raises(AttributeError, match=r"use load_checkpoint\(folder, module, optimizer\)$"):
        getattr(glassformer, "load_state")  # noqa: B009


def test_fill_refuses_a_setting_that_it_does_not_use(tmp_path: Path) -> None:
    run = text_run_of(tmp_path, MaskedConfig())
    model = glassformer.train(run, tmp_path / "run", max_steps=1).model
    with pytest.raises(UserError, match="top_k: an encoder fills masks without a search"):
        model.fill("a [MASK]", top_k=3)


def test_resume_takes_settings_by_name(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), max_steps=20)
    with pytest.raises(Interrupted):
        glassformer.train(run, tmp_path / "run", max_time=1e-3)
    assert glassformer.resume(tmp_path / "run", max_time=600).reports["valid"].loss > 0
