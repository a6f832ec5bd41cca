"""`POST /v1/completions`: every parameter, streams, errors; the texts are those of the model in Python."""

import json
import math
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from glassformer.apps.serving.settings import Limits
from glassformer.model import Model
from serving.conftest import Serve
from serving.served import ask
from tolerances import NETWORK, near

GREEDY = {"temperature": 0, "max_tokens": 12}
PROMPT = "ab cd"


def complete(address: str, prompt: Any = PROMPT, **given: Any) -> dict[str, Any]:
    status, answer = ask(f"{address}/v1/completions", {"prompt": prompt} | given)
    assert status == 200, answer
    return dict(answer)


def text(address: str, prompt: Any = PROMPT, **given: Any) -> str:
    (choice,) = complete(address, prompt, **given)["choices"]
    return str(choice["text"])


def refusal(address: str, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    status, answer = ask(f"{address}{path}", body)
    assert status == 400, answer
    return dict(answer["error"])


def parts(address: str, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
    """Return the parts of a stream; check its form."""
    request = urllib.request.Request(
        f"{address}{path}", json.dumps(body | {"stream": True}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, end = answer.read().decode("utf-8").split("\n\n")
    assert end == "" and events[-1] == "data: [DONE]" and all(event.startswith("data: ") for event in events)
    found = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert len({(part["id"], part["created"], part["model"]) for part in found}) == 1
    return found


@pytest.fixture
def decoder(models: dict[str, Model]) -> Model:
    return models["decoder"]


def test_texts_equal_those_of_the_model(serve: Serve, decoder: Model) -> None:
    """Greedy and drawn, from a text, several texts, ids and lists of ids, and with rules for the sampling."""
    address = serve("decoder")
    assert text(address, **GREEDY) == decoder.generate(PROMPT, temperature=0, max_new_tokens=12)
    prompts = ["ab", "日本 c", "🙂 "]
    choices = complete(address, prompts, **GREEDY)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    expected = decoder.generate(prompts, temperature=0, max_new_tokens=12)
    assert [choice["text"] for choice in choices] == expected
    ids = [list(decoder.prompt_ids(prompt)) for prompt in prompts]
    assert text(address, ids[0], **GREEDY) == decoder.generate(ids[0], temperature=0, max_new_tokens=12)
    assert [choice["text"] for choice in complete(address, ids, **GREEDY)["choices"]] == [
        decoder.generate(one, temperature=0, max_new_tokens=12) for one in ids
    ]
    for rules in (
        {"temperature": 1.5, "top_p": 0.9},
        {"temperature": 0.8, "top_k": 7, "repetition_penalty": 1.3},
        {"temperature": 1.0, "min_p": 0.05},
    ):
        found = text(address, **rules, seed=3, max_tokens=12)
        assert found == decoder.generate(PROMPT, **rules, seed=3, max_new_tokens=12)


RULES: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    {"min_tokens": 12},
]


def named(rules: dict[str, Any]) -> dict[str, Any]:
    """Return rules of a request with the names of Python."""
    return {{"min_tokens": "min_new_tokens"}.get(name, name): value for name, value in rules.items()}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("is_stored", [False, True])
def test_rules_of_earlier_tokens_are_those_of_the_model(
    rules: dict[str, Any], is_stored: bool, serve: Serve, models: dict[str, Model]
) -> None:
    """A request gives them, or the model has them as defaults: of a generation, a conversation, or a search."""
    stored = named(rules) if is_stored else {}
    own = {
        name: replace(model, generation=replace(model.generation, **stored))
        for name, model in models.items()
        if name in ("decoder", "chat", "encoder-decoder")
    }
    address, given = serve(**own), {} if is_stored else rules
    for name, prompt in (("decoder", "ab"), ("encoder-decoder", "red dog")):
        model, body = own[name], {"model": name, "temperature": 0, "max_tokens": 12}
        verb = model.generate if name == "decoder" else partial(model.translate, beam=1)
        options = {"temperature": 0} if name == "decoder" else {}
        answer = complete(address, prompt, **body, **given)
        assert answer["choices"][0]["text"] == verb(prompt, max_new_tokens=12, **options, **named(given))
        assert answer["usage"]["completion_tokens"] == 12 or "min_tokens" not in rules
        _, described = ask(f"{address}/v1/models/{name}")
        assert not is_stored or described["defaults"].items() >= rules.items()
    messages = [{"role": "user", "content": "red dog"}]
    body = {"model": "chat", "messages": messages, "temperature": 0, "max_tokens": 12} | given
    status, answer = ask(f"{address}/v1/chat/completions", body)
    expected = own["chat"].chat(messages, temperature=0, max_new_tokens=12, **named(given))
    assert status == 200 and answer["choices"][0]["message"]["content"] == expected


def test_a_shortest_text_above_the_longest_is_refused(serve: Serve, decoder: Model) -> None:
    stored = replace(decoder.generation, min_new_tokens=20)
    address = serve("chat", decoder=replace(decoder, generation=stored))
    error = refusal(address, model="decoder", prompt="ab")
    default = "min_tokens is 20 (the default of the model) and max_tokens is 16: lower the first, or raise the second"
    assert (error["param"], error["message"]) == ("min_tokens", default)
    assert complete(address, model="decoder", min_tokens=0, max_tokens=1)["usage"]["completion_tokens"] == 1
    # a prompt that is only scored has no text
    assert complete(address, "ab", model="decoder", echo=True, max_tokens=0)["choices"][0]["text"] == "ab"
    assert (
        "min_tokens is 1 "
        in refusal(address, model="decoder", prompt="ab", echo=True, max_tokens=0, min_tokens=1)["message"]
    )
    messages = [{"role": "user", "content": "red dog"}]
    error = refusal(
        address, "/v1/chat/completions", model="chat", messages=messages, max_completion_tokens=3, min_tokens=4
    )
    assert error["message"] == "min_tokens is 4 and max_completion_tokens is 3: lower the first, or raise the second"


def test_several_texts_of_several_prompts_are_the_samples_of_the_model(serve: Serve, decoder: Model) -> None:
    answer = complete(serve("decoder"), ["ab", "cd"], n=3, temperature=1.2, seed=5, max_tokens=8)
    expected = decoder.generate(["ab", "cd"], n=3, temperature=1.2, seed=5, max_new_tokens=8)
    assert [choice["text"] for choice in answer["choices"]] == [one for of_prompt in expected for one in of_prompt]
    n_prompt = sum(len(decoder.prompt_ids(prompt)) for prompt in ("ab", "cd"))
    usage = answer["usage"]
    assert usage["prompt_tokens"] == n_prompt and usage["total_tokens"] == n_prompt + usage["completion_tokens"]
    assert 6 <= usage["completion_tokens"] <= 6 * 8


def test_without_a_seed_texts_differ(serve: Serve) -> None:
    address = serve("decoder")
    drawn = {text(address, temperature=1.5, max_tokens=20) for _ in range(3)}
    assert len(drawn) == 3
    assert len({text(address, temperature=1.5, max_tokens=20, seed=1) for _ in range(3)}) == 1


def test_a_stop_text_ends_a_text_also_between_tokens(serve: Serve) -> None:
    """The stop text is part of several tokens, and not part of the answer, whole or streamed."""
    address = serve("decoder")
    whole = text(address, temperature=0, max_tokens=25)
    for stop in (whole[4:7], whole[1], whole[5:11]):
        expected = whole[: whole.index(stop)]
        for given in (stop, ["never there", stop]):
            (choice,) = complete(address, temperature=0, max_tokens=25, stop=given)["choices"]
            assert choice["text"] == expected and choice["finish_reason"] == "stop"
        found = parts(address, prompt=PROMPT, temperature=0, max_tokens=25, stop=stop)
        assert "".join(part["choices"][0]["text"] for part in found) == expected
    (choice,) = complete(address, temperature=0, max_tokens=25, stop=[])["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole, "length")


def test_a_stream_equals_the_whole(serve: Serve) -> None:
    address = serve("decoder")
    given = {"n": 2, "temperature": 1.3, "seed": 4, "max_tokens": 14, "logprobs": 2, "echo": True}
    whole = complete(address, ["ab 日", "cd"], **given)
    options = {"include_usage": True}
    *found, last = parts(address, prompt=["ab 日", "cd"], stream_options=options, **given)
    assert last["choices"] == [] and last["usage"] | {"prompt_tokens_details": None} == whole["usage"] | {
        "prompt_tokens_details": None
    }
    assert all(part["usage"] is None for part in found)
    for row, choice in enumerate(whole["choices"]):
        mine = [part["choices"][0] for part in found if part["choices"][0]["index"] == row]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            joined = [value for part in mine for value in part["logprobs"][name]]
            if name in ("token_logprobs", "top_logprobs"):
                joined, values = _numbers(joined), _numbers(values)
            assert joined == near(values, terms=NETWORK) if name.endswith("logprobs") else joined == values
    assert not any(part["usage"] for part in parts(address, prompt="a", **GREEDY))


def _numbers(values: list[Any]) -> list[float]:
    flat = [x for value in values for x in (value.values() if isinstance(value, dict) else [value])]
    return [math.nan if x is None else x for x in flat if x is not None]


def test_characters_are_never_cut_in_a_stream(serve: Serve, models: dict[str, Model]) -> None:
    """The bias makes the model write the bytes of characters, each of several tokens."""
    tokenizer = models["decoder"].tokenizer
    pieces = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    ids = [pieces[bytes([byte])] for byte in "🙂".encode()]
    address = serve("decoder")
    bias = {str(token): 30.0 for token in ids}
    body = {"prompt": "ab", "temperature": 1.5, "max_tokens": 25, "logit_bias": bias, "logprobs": 3}
    for seed in range(3):
        found = parts(address, seed=seed, **body)
        pieces_of_text = [part["choices"][0]["text"] for part in found]
        whole = complete(address, body["prompt"], seed=seed, **{k: v for k, v in body.items() if k != "prompt"})
        assert "".join(pieces_of_text) == whole["choices"][0]["text"]
        tokens = [token for part in found for token in part["choices"][0]["logprobs"]["ids"]]
        data = b"".join(tokenizer.pieces[token] for token in tokens)
        assert "".join(pieces_of_text) == data.decode("utf-8", "replace")
        names = [token for part in found for token in part["choices"][0]["logprobs"]["tokens"]]
        assert any(name.startswith("bytes:\\x") for name in names)
    (choice,) = complete(address, [*tokenizer.encode("a🙂b"), *ids[:2]], max_tokens=1, echo=True, logprobs=5)["choices"]
    assert choice["text"].startswith("a🙂b")
    offsets, shown = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert offsets == sorted(offsets) and offsets[shown.index("b")] == choice["text"].index("b")
    assert all(len(top) >= 5 for top in choice["logprobs"]["top_logprobs"][1:])


def test_log_probabilities_are_those_of_the_model(serve: Serve, decoder: Model) -> None:
    """Before temperature and bias; with echo those of the prompt, except for its first token."""
    ids = list(decoder.prompt_ids("ab cd ef"))
    answer = complete(
        serve("decoder"), "ab cd ef", temperature=1.4, seed=1, max_tokens=6, logprobs=3, echo=True, logit_bias={"70": 3}
    )
    (choice,) = answer["choices"]
    scored = choice["logprobs"]
    assert scored["ids"][: len(ids)] == ids and len(scored["ids"]) == len(ids) + answer["usage"]["completion_tokens"]
    with torch.inference_mode():
        expected = decoder.network(torch.tensor([scored["ids"]]))[0].log_softmax(dim=-1)
    assert scored["token_logprobs"][0] is None and scored["top_logprobs"][0] is None
    for place, token in enumerate(scored["ids"][1:]):
        own, top = scored["token_logprobs"][place + 1], scored["top_logprobs"][place + 1]
        assert own == near(float(expected[place, token]), terms=NETWORK)
        assert sorted(top.values(), reverse=True)[:3] == near(expected[place].topk(3).values.tolist(), terms=NETWORK)
        assert top[scored["tokens"][place + 1]] == own and len(top) in (3, 4)
    for offset, token in zip(scored["text_offset"], scored["tokens"], strict=True):
        assert choice["text"][offset:].lstrip("\ufffd").startswith(token) or token.startswith("bytes:")
    assert choice["text"].startswith("ab cd ef")


def test_the_harness_scores_a_prompt_without_new_tokens(serve: Serve, decoder: Model) -> None:
    (choice,) = complete(serve("decoder"), "ab cd", max_tokens=0, echo=True, logprobs=1)["choices"]
    scored = choice["logprobs"]
    assert choice["text"] == "ab cd" and choice["finish_reason"] == "length"
    assert scored["ids"] == list(decoder.prompt_ids("ab cd"))
    found = sum(x for x in scored["token_logprobs"] if x is not None)
    assert found == near(decoder.score("ab cd", log=lambda note: None).log_prob, terms=NETWORK)
    (choice,) = complete(serve("decoder"), "ab ", max_tokens=0, echo=True)["choices"]
    assert choice["text"] == "ab " and choice["logprobs"] is None


def test_penalties_and_bias_change_the_text(serve: Serve, decoder: Model) -> None:
    address = serve("decoder")
    plain = complete(address, **GREEDY, logprobs=0)["choices"][0]["logprobs"]
    assert len({*plain["ids"]}) < 12 and all(len(top) == 1 for top in plain["top_logprobs"])
    for penalty in ("presence_penalty", "frequency_penalty"):
        found = complete(address, **GREEDY, logprobs=0, **{penalty: 2.0})["choices"][0]["logprobs"]["ids"]
        assert found != plain["ids"]
    banned = complete(address, **GREEDY, logprobs=0, logit_bias={str(plain["ids"][0]): -100})
    assert plain["ids"][0] not in banned["choices"][0]["logprobs"]["ids"]
    forced = complete(address, **GREEDY, logprobs=0, logit_bias={"70": 100})
    assert forced["choices"][0]["logprobs"]["ids"] == [70] * 12


def test_the_context_limits_prompt_and_text(serve: Serve, decoder: Model) -> None:
    """A full context has one more token, as in Python; a longer prompt is refused."""
    address, n = serve("decoder"), decoder.config.max_len
    answer = complete(address, [70] * n, temperature=0, max_tokens=9)
    assert answer["usage"]["completion_tokens"] == 1 and answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["text"] == decoder.generate([70] * n, temperature=0, max_new_tokens=9)
    error = refusal(address, prompt=[70] * (n + 1))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["message"] == f"prompt has {n + 1} tokens, and the context of the model is {n}: shorten it"


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
def test_sources_are_translated(name: str, serve: Serve, models: dict[str, Model]) -> None:
    model, sources = models[name], ["red dog", "the cat sees the house"]
    address = serve(name)
    answer = complete(address, sources, temperature=0, max_tokens=12, logprobs=1)
    expected = model.translate(sources, beam=1, max_new_tokens=12)
    assert [choice["text"] for choice in answer["choices"]] == expected
    ids = [list(model.encode_source(source)) for source in sources]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert [one["text"] for one in complete(address, ids, temperature=0, max_tokens=12)["choices"]] == expected
    for choice, source in zip(answer["choices"], sources, strict=True):
        if choice["finish_reason"] == "stop":
            scored = model.score(choice["text"], source=source).log_prob
            assert sum(choice["logprobs"]["token_logprobs"]) == near(scored, terms=NETWORK)
    found = parts(address, prompt=sources[0], temperature=0, max_tokens=12)
    assert "".join(part["choices"][0]["text"] for part in found) == expected[0]
    drawn = complete(address, sources[0], temperature=1.5, n=3, seed=1)["choices"]
    assert len({one["text"] for one in drawn}) > 1
    assert "the model writes targets of sources" in refusal(address, prompt="red", echo=True)["message"]
    assert refusal(address, prompt=[1] * 99)["code"] == "context_length_exceeded"


def test_texts_at_the_same_time_equal_texts_in_turn(serve: Serve) -> None:
    address = serve("decoder", limits=Limits(max_rows=5))
    bodies: list[dict[str, Any]] = [
        {"prompt": PROMPT * (1 + i % 4), "temperature": 0.9 * (i % 2), "seed": i, "max_tokens": 2 + 3 * (i % 5)}
        for i in range(24)
    ]
    in_turn = [text(address, **body) for body in bodies]
    with ThreadPoolExecutor(24) as clients:
        assert [*clients.map(lambda body: text(address, **body), bodies)] == in_turn


def test_null_has_the_meaning_of_an_absent_parameter(serve: Serve) -> None:
    """Clients of OpenAI's interface send it."""
    address, names = serve(), ("n", "stream", "echo", "logprobs", "stop", "best_of", "logit_bias", "user")
    nulls = dict.fromkeys([*names, "presence_penalty", "frequency_penalty", "max_tokens", "top_p", "stream_options"])
    body = {"prompt": PROMPT, "model": "decoder", "temperature": 0}
    absent, given = (ask(f"{address}/v1/completions", body | more) for more in ({}, nulls))
    assert absent[0] == given[0] == 200 and absent[1]["choices"] == given[1]["choices"]
    assert given[1]["usage"]["completion_tokens"] == 16
    chat = {"model": "chat", "messages": [{"role": "user", "content": "red"}], "temperature": 0}
    nulls = dict.fromkeys(["n", "stream", "logprobs", "max_tokens", "tools", "seed", "presence_penalty"])
    absent, given = (ask(f"{address}/v1/chat/completions", chat | more) for more in ({}, nulls))
    assert absent[0] == given[0] == 200 and absent[1]["choices"] == given[1]["choices"]
    assert "prompt: expected a text" in refusal(address, model="decoder", prompt=None)["message"]


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"prompt": "a", "max_token": 3}, "max_token", "unknown parameter 'max_token': did you mean max_tokens?"),
        ({"prompt": "a", "stream_options": {"include_usages": True}}, "stream_options.include_usages", "did you mean"),
        ({}, "prompt", "the parameter 'prompt' is missing"),
        ({"prompt": 5}, "prompt", "expected a text, ids, or a list of texts or of lists of ids, got 5"),
        ({"prompt": []}, "prompt", "expected a text, ids"),
        ({"prompt": [3, "a"]}, "prompt.1", "input should be a valid integer, got 'a'"),
        ({"prompt": ["a", 3]}, "prompt.1", "input should be a valid string, got 3"),
        ({"prompt": [[3], []]}, "prompt.1", "at least 1 item"),
        ({"prompt": [3, -1]}, "prompt.1", "greater than or equal to 0, got -1"),
        ({"prompt": [3, True]}, "prompt.1", "valid integer, got True"),
        ({"prompt": [100000]}, None, "prompt 1 has the id 100000, and the vocabulary has 290 tokens"),
        ({"prompt": "a", "stop": 3}, "stop", "expected a text, or a list of texts, got 3"),
        ({"prompt": "a", "stop": ["a", ""]}, "stop.1", "at least 1 character"),
        ({"prompt": "a", "temperature": "0.5"}, "temperature", "input should be a valid number, got '0.5'"),
        ({"prompt": "a", "temperature": -1}, "temperature", "greater than or equal to 0, got -1"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature", "finite number"),
        ({"prompt": "a", "stream": "yes"}, "stream", "valid boolean, got 'yes'"),
        ({"prompt": "a", "n": 17}, "n", "asks for 17 texts, and the server allows 16"),
        ({"prompt": ["a"] * 9, "n": 2}, "n", "asks for 18 texts, and the server allows 16"),
        ({"prompt": "a", "max_tokens": 5000}, "max_tokens", "max_tokens is 5000, and the server allows 4,096"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "nothing to generate: set echo"),
        ({"prompt": "a", "best_of": 3}, "best_of", "leave best_of out"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "leave suffix out"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "less than or equal to 20, got 21"),
        ({"prompt": "a", "logit_bias": {"4000": 1}}, "logit_bias", "has the id 4000, and the model has 290 tokens"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias.x", "match pattern"),
        ({"prompt": "a", "seed": -2}, "seed", "greater than or equal to -1, got -2"),
        ({"prompt": "a", "stop": "a" * 1025}, "stop", "at most 1024 characters"),
        ({"prompt": "a", "stop": ["a"] * 17}, "stop", "at most 16 items"),
        ({"prompt": "a", "logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias", "at most 1024 ids"),
    ],
)
def test_a_wrong_request_gets_one_sentence(
    given: dict[str, Any], param: str | None, message: str, serve: Serve
) -> None:
    error = refusal(serve("decoder"), **given)
    assert error["param"] == param and message in error["message"] and "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


def test_other_bodies_and_models_get_one_sentence(serve: Serve) -> None:
    address = serve()
    for body in ([], "text", 3):
        assert ask(f"{address}/v1/completions", body)[1]["error"]["message"].startswith("the request has no body")
    status, answer = ask(f"{address}/v1/completions", {"prompt": "a", "model": "decodr"})
    assert status == 404 and answer["error"]["code"] == "model_not_found"
    assert "did you mean decoder?" in answer["error"]["message"]
    assert "parameter 'model' is missing" in refusal(address, prompt="a")["message"]
    error = refusal(address, model="classifier", prompt="a")
    assert error["code"] == "wrong_model" and "lacks the ability completions" in error["message"]
    assert ask(f"{address}/v1/complete")[0] == 404 and ask(f"{address}/v1/completions")[0] == 405
