"""The endpoints of all lineages: each equals the method of `Model`, and wrong input gets a sentence."""

import base64
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
import late
from glassformer.apps.serving.lineage_schemas import FillRequest, TranslationRequest
from glassformer.apps.serving.settings import Limits
from glassformer.config.run import BeamConfig
from glassformer.inspection.attention_maps import alignment
from glassformer.model import Model
from runs import ENCODER, WORDS, Tiny, label_run
from serving.conftest import Serve
from serving.served import ask
from tolerances import NETWORK, assert_close, near

openai = late.module("openai")

SENTENCES = ["red dog", "the blue cat sees", "house", "two dog and cat runs"]
LONG = "red dog " * 200


@pytest.fixture(scope="session")
def labels(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> dict[str, Model]:
    """Models of the other kinds of labels, and a denoiser."""
    runs = {"tags": "tags", "numbers": "regression", "several": "multi_label", "denoiser": "infilling"}
    found = {name: glassformer.load(tiny(run)) for name, run in runs.items()}
    folder = tmp_path_factory.mktemp("two")
    two = label_run(folder, model=replace(ENCODER, n_token_types=2), data={"second_field": "other"})
    found["pairs"] = glassformer.train(two, folder / "run").model
    return found


def data(answer: tuple[int, Any]) -> Any:
    """Return the items of an answer without their numbers, which must be in order."""
    status, body = answer
    assert status == 200, body
    assert [one.pop("index") for one in body["data"]] == list(range(len(body["data"])))
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] > 0
    return body["data"]


def refused(answer: tuple[int, Any], words: str, status: int = 400) -> None:
    """Require an error in one sentence with some words."""
    found, body = answer
    assert found == status, body
    assert words in body["error"]["message"] and "\n" not in body["error"]["message"]


# Vectors


@pytest.mark.parametrize("name", ["encoder", "decoder", "classifier"])
def test_vectors_equal_those_of_embed(serve: Serve, models: dict[str, Model], name: str) -> None:
    found = data(ask(f"{serve(name)}/v1/embeddings", {"input": SENTENCES}))
    assert_close([one["embedding"] for one in found], models[name].embed(SENTENCES))


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_ids_give_the_vectors_of_their_text(serve: Serve, models: dict[str, Model], name: str) -> None:
    ids = [models[name].text_ids(text) for text in SENTENCES]
    address = serve(name)
    found = data(ask(f"{address}/v1/embeddings", {"input": ids}))
    assert_close([one["embedding"] for one in found], models[name].embed(SENTENCES))
    [alone] = data(ask(f"{address}/v1/embeddings", {"input": ids[0]}))
    assert_close(alone["embedding"], found[0]["embedding"])


def test_the_client_of_openai_reads_vectors_in_both_forms(serve: Serve, models: dict[str, Model]) -> None:
    """The client asks for base64 by default."""
    expected = models["encoder"].embed(SENTENCES)
    with openai.OpenAI(base_url=f"{serve('encoder')}/v1", api_key="none") as client:
        plain = client.embeddings.create(model="encoder", input=SENTENCES, encoding_format="float")
        coded = client.embeddings.create(model="encoder", input=SENTENCES, dimensions=expected.shape[1])
    assert [one.embedding for one in plain.data] == [one.embedding for one in coded.data]
    assert_close([one.embedding for one in coded.data], expected)


def test_base64_has_the_bytes_of_the_numbers(serve: Serve, models: dict[str, Model]) -> None:
    [one] = data(ask(f"{serve('encoder')}/v1/embeddings", {"input": "red dog", "encoding_format": "base64"}))
    vector = np.frombuffer(base64.b64decode(one["embedding"]), dtype="<f4")
    assert_close(vector, models["encoder"].embed("red dog"))


def test_a_long_text_has_a_vector_only_if_it_may_be_cut(serve: Serve, models: dict[str, Model]) -> None:
    address = serve("encoder")
    refused(ask(f"{address}/v1/embeddings", {"input": [LONG, "red"]}), "longer than 32 tokens")
    refused(ask(f"{address}/v1/embeddings", {"input": [5] * 33}), "longer than 32 tokens")
    found = data(ask(f"{address}/v1/embeddings", {"input": [LONG, "red"], "truncation": "auto"}))
    expected = models["encoder"].embed([LONG, "red"], log=lambda note: None)
    assert_close([one["embedding"] for one in found], expected)


def test_wrong_inputs_for_vectors_get_a_sentence(serve: Serve) -> None:
    address = serve("encoder", "recurrent")
    url, encoder = f"{address}/v1/embeddings", {"model": "encoder"}
    refused(ask(url, encoder | {"input": "red", "dimensions": 3}), "have 16 numbers")
    refused(ask(url, encoder | {"input": [1, 10_000]}), "the id 10000")
    refused(ask(url, encoder | {"input": []}), "input")
    refused(ask(url, encoder | {"input": [1, "red"]}), "input")
    refused(ask(url, {"model": "recurrent", "input": "red"}), "lacks the ability embeddings")


# Targets of sources


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
@pytest.mark.parametrize(
    "settings", [{}, {"beam": 4, "n_best": 3, "length_penalty": 0.5}, {"beam": 1, "prefix": "rot"}]
)
def test_targets_equal_those_of_translations(
    serve: Serve, models: dict[str, Model], name: str, settings: dict[str, Any]
) -> None:
    found = data(ask(f"{serve(name)}/v1/translate", {"sources": SENTENCES} | settings))
    for one, best in zip(found, models[name].translations(SENTENCES, **settings), strict=True):
        assert [target["text"] for target in one["targets"]] == [target.text for target in best]
        assert [target["ended"] for target in one["targets"]] == [target.hypothesis.ended for target in best]
        for key in ("score", "log_prob"):
            expected = [getattr(target.hypothesis, key) for target in best]
            assert [target[key] for target in one["targets"]] == near(expected, terms=NETWORK)


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
def test_an_alignment_is_the_attention_of_the_target(serve: Serve, models: dict[str, Model], name: str) -> None:
    body = {"sources": "red dog runs", "beam": 3, "n_best": 2, "alignment": True}
    [found] = data(ask(f"{serve(name)}/v1/translate", body))
    model = models[name]
    for target, best in zip(found["targets"], model.translations("red dog runs", beam=3, n_best=2), strict=True):
        ids, given = best.hypothesis.ids, target["alignment"]
        trace = model.attention(source="red dog runs", target=[model.translator.start_id, *ids[:-1]])
        assert_close(given["weights"], alignment(trace))
        assert given["target_tokens"] == model.tokenizer.tokens(ids)
        assert given["source_tokens"] == model.source_tokenizer.tokens(model.encode_source("red dog runs"))
        assert_close(np.sum(given["weights"], axis=1), 1, dtype=torch.float32)


def test_a_search_has_the_settings_of_beamconfig() -> None:
    settings = {one.name for one in fields(BeamConfig)} - {"end_ids"}
    assert settings < set(TranslationRequest.model_fields) and settings < set(FillRequest.model_fields)


@pytest.mark.parametrize(
    "rules",
    [
        {"min_new_tokens": 9, "max_new_tokens": 12},
        {"repetition_penalty": 3.0},
        {"no_repeat_ngram_size": 1, "max_new_tokens": 12, "min_new_tokens": 6},
        {"coverage_penalty": 2.0},
    ],
)
def test_the_rules_of_a_search_are_those_of_translate(
    serve: Serve, models: dict[str, Model], rules: dict[str, Any]
) -> None:
    body = {"sources": SENTENCES, "beam": 3} | rules
    found = data(ask(f"{serve('encoder-decoder')}/v1/translate", body))
    for one, best in zip(found, models["encoder-decoder"].translations(SENTENCES, beam=3, **rules), strict=True):
        (target,) = one["targets"]
        assert target["text"] == best[0].text and target["score"] == near(best[0].hypothesis.score, terms=NETWORK)


def test_wrong_searches_get_a_sentence(serve: Serve) -> None:
    url = f"{serve('encoder-decoder', 'decoder', limits=Limits(max_rows=8, max_tokens=99))}/v1/translate"
    body = {"model": "encoder-decoder", "sources": "red dog"}
    refused(ask(url, body | {"beam": 9}), "beam is 9, and the limit of the server is 8")
    refused(ask(url, body | {"max_new_tokens": 100}), "max_new_tokens is 100")
    refused(ask(url, body | {"beam": 2, "n_best": 3}), "n_best is 3")
    refused(ask(url, body | {"beams": 2}), "unknown parameter 'beams'")
    refused(ask(url, body | {"sources": LONG}), "the model reads at most 32")
    refused(ask(url, body | {"sources": ["red"] * 17}), "17")
    refused(ask(url, {"model": "decoder", "sources": "red"}), "lacks the ability translate")


# Masks


def test_fillings_equal_those_of_fill(serve: Serve, models: dict[str, Model]) -> None:
    texts = ["red [MASK]", "[MASK] dog [MASK] runs"]
    found = data(ask(f"{serve('encoder')}/v1/fill-mask", {"text": texts, "n": 3}))
    for one, filling in zip(found, models["encoder"].fill(texts, 3), strict=True):
        expected = asdict(filling)
        assert one["text"] == expected["text"]
        for given, own in zip(one["candidates"], expected["candidates"], strict=True):
            assert [c["token_id"] for c in given] == [c["token_id"] for c in own] and len(given) == 3
            assert [c["probability"] for c in given] == near([c["probability"] for c in own])


def test_a_denoiser_writes_the_text(serve: Serve, labels: dict[str, Model]) -> None:
    url = f"{serve('encoder', denoiser=labels['denoiser'])}/v1/fill-mask"
    body = {"model": "denoiser", "text": "red [MASK] runs", "beam": 2, "max_new_tokens": 6}
    expected = labels["denoiser"].fill("red [MASK] runs", beam=2, max_new_tokens=6)
    assert data(ask(url, body)) == [{"text": expected.text, "candidates": []}]
    refused(ask(url, body | {"n": 3}), "leave n out")
    refused(ask(url, {"model": "encoder", "text": "red [MASK]", "beam": 2}), "leave beam out")
    refused(ask(url, {"model": "encoder", "text": "red dog"}), "no [MASK] to fill")
    refused(ask(url, {"model": "encoder", "text": "[MASK] " + LONG}), "reads at most 32")


# Labels


def test_classes_equal_those_of_classify(serve: Serve, models: dict[str, Model], labels: dict[str, Model]) -> None:
    address = serve("classifier", several=labels["several"])
    for name, model in {"classifier": models["classifier"], "several": labels["several"]}.items():
        found = data(ask(f"{address}/v1/classify", {"model": name, "texts": SENTENCES}))
        for one, expected in zip(found, model.classify(SENTENCES), strict=True):
            assert one == {"classes": near(expected)}
            assert tuple(one["classes"]) == model.classes


def test_a_threshold_chooses_labels(serve: Serve, models: dict[str, Model], labels: dict[str, Model]) -> None:
    address = serve("classifier", several=labels["several"], numbers=labels["numbers"])
    for name, model, label in (("classifier", models["classifier"], "cat"), ("several", labels["several"], None)):
        for threshold in (0.0, 0.4, 1.0):
            body = {"model": name, "texts": SENTENCES, "threshold": threshold, "label": label}
            found = data(ask(f"{address}/v1/classify", body))
            assert [one["labels"] for one in found] == model.choose_labels(SENTENCES, threshold, label)
    wrong: dict[str, dict[str, Any]] = {
        "needs label": {"model": "classifier", "threshold": 0.5},
        "label has no effect without threshold": {"model": "classifier", "label": "cat"},
        "predicts a number": {"model": "numbers", "threshold": 0.5},
        "threshold": {"model": "classifier", "threshold": 1.5, "label": "cat"},
    }
    for message, body in wrong.items():
        refused(ask(f"{address}/v1/classify", body | {"texts": "red dog"}), message)


def test_numbers_and_pairs_equal_those_of_classify(serve: Serve, labels: dict[str, Model]) -> None:
    address = serve("classifier", numbers=labels["numbers"], pairs=labels["pairs"])
    [one] = data(ask(f"{address}/v1/classify", {"model": "numbers", "texts": "red dog"}))
    expected = labels["numbers"].classify("red dog")["number"]
    assert one == {"number": near(expected)}
    pair = ("red dog", "blue house")
    [one] = data(ask(f"{address}/v1/classify", {"model": "pairs", "texts": [pair]}))
    assert one["classes"] == near(labels["pairs"].classify(pair))
    refused(ask(f"{address}/v1/classify", {"model": "pairs", "texts": ["red dog"]}), "expected two texts")
    refused(ask(f"{address}/v1/classify", {"model": "classifier", "texts": [pair]}), "expected one text")
    refused(ask(f"{address}/v1/classify", {"model": "classifier", "texts": LONG}), "longer than 32 tokens")


def test_tags_equal_those_of_tag(serve: Serve, labels: dict[str, Model]) -> None:
    url = f"{serve('encoder', tags=labels['tags'])}/v1/tag"
    words = [text.split() for text in SENTENCES]
    found = data(ask(url, {"model": "tags", "sentences": words}))
    for one, given, expected in zip(found, words, labels["tags"].tag(words), strict=True):
        assert one["words"] == given and one["tags"] == [tag for tag, _ in expected]
        assert one["probabilities"] == near([p for _, p in expected])
    same = [data(ask(url, {"model": "tags", "sentences": given})) for given in (SENTENCES[1], words[1])]
    assert same[0] == same[1] and same[0][0]["words"] == words[1]
    refused(ask(url, {"model": "tags", "sentences": ["red dog", "runs"]}), "is not one word")
    refused(ask(url, {"model": "tags", "sentences": LONG}), "longer than 32 tokens")
    cut = data(ask(url, {"model": "tags", "sentences": LONG, "truncation": "auto"}))
    assert len(cut[0]["tags"]) < len(cut[0]["words"])
    refused(ask(url, {"model": "encoder", "sentences": "red"}), "lacks the ability tag")


# Scores


@pytest.mark.parametrize(("name", "has_sources"), [("decoder", False), ("decoder", True), ("recurrent", True)])
def test_scores_equal_those_of_score(serve: Serve, models: dict[str, Model], name: str, has_sources: bool) -> None:
    body = {"text": SENTENCES} | ({"source": SENTENCES[::-1]} if has_sources else {})
    found = data(ask(f"{serve(name)}/v1/score", body))
    given: dict[str, Any] = {"source": SENTENCES[::-1]} if has_sources else {}
    for one, expected in zip(found, models[name].score(SENTENCES, **given, log=lambda note: None), strict=True):
        assert one == near(expected.to_dict(), terms=NETWORK)


def test_wrong_scores_get_a_sentence(serve: Serve) -> None:
    url = f"{serve('decoder', 'recurrent', limits=Limits(max_tokens=300))}/v1/score"
    refused(ask(url, {"model": "recurrent", "text": "rot"}), "recurrent scores a target given its source")
    refused(ask(url, {"model": "decoder", "text": ["red", "dog"], "source": ["red"]}), "one source per text")
    refused(ask(url, {"model": "decoder", "text": LONG * 3}), "the server reads at most 300")
    status, answer = ask(url, {"model": "decoder", "text": LONG[:160]})
    assert status == 200 and answer["data"][0]["n_tokens"] > 32  # read in windows


# Together


def test_requests_at_the_same_time_have_the_answers_that_they_have_alone(
    serve: Serve, labels: dict[str, Model]
) -> None:
    """All endpoints at once, with one request in five that is wrong."""
    address = serve("encoder", "encoder-decoder", "classifier", "decoder")
    words = list(WORDS)
    requests: list[tuple[str, dict[str, Any]]] = []
    for n in range(8):
        text = " ".join(words[(n * k) % len(words)] for k in range(1, 3 + n % 4))
        requests += [
            ("embeddings", {"model": "encoder", "input": text}),
            ("translate", {"model": "encoder-decoder", "sources": [text, text[:3]], "beam": 1 + n % 2}),
            ("classify", {"model": "classifier", "texts": [text] * (1 + n % 3)}),
            ("score", {"model": "decoder", "text": text}),
            ("translate", {"model": "encoder-decoder", "sources": LONG}),
        ]

    def answer(given: tuple[str, dict[str, Any]]) -> Any:
        endpoint, body = given
        return ask(f"{address}/v1/{endpoint}", body)

    alone = [answer(one) for one in requests]
    with ThreadPoolExecutor(16) as clients:
        together = list(clients.map(answer, requests))
    assert [status for status, _ in alone] == [200, 200, 200, 200, 400] * 8
    for one, other in zip(together, alone, strict=True):
        assert one == approximately(other)


def approximately(value: Any) -> Any:
    """Return a value whose numbers are compared approximately, and all else exactly."""
    if isinstance(value, dict):
        return {name: approximately(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(approximately(one) for one in value)
    return near(value, terms=NETWORK) if isinstance(value, float) else value
