"""Logit attribution and activation patching in JavaScript equal those of the server, for several kinds of models."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

from configs import CONFIGS, random_model
from glassformer.model import Model
from inspector.browsing import given_to
from inspector.direct import Inspector
from inspector.network.answers import answered, require_equal, with_large_effects, write_requests
from inspector.network.node import cases_of, run_node

ADDITIVE = {
    "llama": "decoder",
    "fused_qkv": "decoder",
    "sandwich": "decoder",
    "parallel": "decoder",
    "shared_norm": "decoder",
    "output_norm": "decoder",
    "d_embedding": "decoder",
    "attention_only": "decoder",
    "t5": "encoder-decoder",
    "unequal_stacks": "encoder-decoder",
}
"""Configurations whose logits are a sum of terms, with the trained model whose tokenizer they get."""
TEXTS = {
    "decoder": ("abc de fgh", "abc ce fgh"),
    "encoder": ("abc de [MASK] fgh", "abc ce [MASK] fgh"),
    "encoder-decoder": ("red dog sees", "red cat sees"),
}
NAMES = (*TEXTS, *ADDITIVE)


def with_network_of(name: str, model: Model) -> Model:
    """Return a model with the network of a configuration, random weights, and the vocabulary of another model."""
    kept = ("vocab_size", "max_len", "pad_id", "bos_id", "eos_id", "unk_id", "decoder_start_id")
    config = dataclasses.replace(CONFIGS[name], **{key: getattr(model.config, key) for key in kept})
    network = random_model(config, dtype=torch.float32)
    return dataclasses.replace(model, network=network, run=dataclasses.replace(model.run, model=config))


def single_tokens(model: Model) -> list[str]:
    """Return two texts that are one token each."""
    texts = ("a", "b") if len(model.tokenizer.encode("a")) == 1 else ("hund", "rot")
    assert [len(model.tokenizer.encode(text)) for text in texts] == [1, 1]
    return [*texts]


def attributions_of(model: Model) -> list[dict[str, Any]]:
    """Return queries: the prediction, a token, a difference, and what is refused."""
    token, other = single_tokens(model)
    pairs = ({}, {"token": token}, {"token": token, "against": other}, {"token": token, "against": token})
    return [{"position": 1} | pair for pair in (*pairs, {"token": "a b c"})]


def patches_of(model: Model, family: str) -> list[dict[str, Any]]:
    """Return the bodies of requests: both kinds of parts, each stack, a set of pairs, and what is refused."""
    clean, corrupted = TEXTS[family]
    answer, wrong = single_tokens(model)
    one = {"clean": clean, "corrupted": corrupted, "parts": "positions", "more_clean": [], "more_corrupted": []}
    known = one | {"answer": answer, "wrong": wrong}
    heads = known | {"parts": "heads"}
    several = {"more_clean": [f"{corrupted}\t{answer}"] * 5, "more_corrupted": [f"{clean}\t{wrong}"] * 5}
    bodies = [one, known, heads, known | several, heads | several, known | {"more_clean": [clean]}]
    bodies += [known | {"corrupted": clean}, known | {"corrupted": f"{clean} {clean}"}, known | {"wrong": answer}]
    if family != "encoder-decoder":
        return bodies
    with_target = [
        body | {"target": "sieht hund", "stack": stack} for body in bodies for stack in ("encoder", "decoder")
    ]
    return [one, *with_target]


def sets_of(family: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return requests about a set of texts: path, name of the function, and body."""
    lines = [*TEXTS[family], "fgh de abc" if family == "decoder" else TEXTS[family][0][::-1], "a " * 50]
    if family == "encoder-decoder":
        lines = ["red dog sees\tsieht hund rot", "red cat sees\tsieht katze", "dog red"]
    kinds = {"encoder-decoder": ("encoder.0.head", "decoder.0.neuron", "cross.0.head")}.get(
        family, (f"{family}.1.head", f"{family}.0.neuron")
    )
    effects = [
        {"lines": [*lines, *lines[:2]], "mean": False},
        {"lines": lines, "mean": True},
        {"lines": [], "mean": False},
    ]
    units = [{"lines": lines, "units": kind, "unit": unit} for kind in kinds for unit in (1, 0, 999)]
    return [
        *(("/api/effects", "effects_of_set", body) for body in effects),
        *(("/api/strongest", "strongest_texts", body) for body in units),
    ]


@pytest.fixture(scope="module")
def answers(
    request: pytest.FixtureRequest, models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[list[Any], list[Any]]]]:
    """By name of the case: the answers of JavaScript and those of the server."""
    folder, expected = tmp_path_factory.mktemp("attributions"), {}
    names = cases_of(request)
    for name in names:
        family = ADDITIVE.get(name, name)
        model = models[family]
        model = with_network_of(name, model) if name in ADDITIVE else with_large_effects(model)
        if model.is_seq2seq:  # the page searches greedily
            search = dataclasses.replace(model.generation, beam=1)
            model = dataclasses.replace(model, generation=search)
        inspector = Inspector(model)
        run = inspector.run(**given_to(model))["run"]
        queries, patches = [], patches_of(model, family)
        if inspector.model()["is_additive"]:
            queries = attributions_of(model)
        sets = sets_of(family)
        if name in ADDITIVE:  # no effects, and the layers that the model has
            blocks = model.config.head_stack.n_layers
            sets = [one for one in sets if one[0] == "/api/strongest" and int(one[2]["units"].split(".")[1]) < blocks]
        if name in ADDITIVE:
            patches = [body for body in patches if "answer" in body and not body["more_clean"]][:4]
        write_requests(
            folder,
            name,
            inspector,
            given_to(model),
            gets=[f"attribution?{urlencode(query)}" for query in queries],
            posts=[*(["/api/patch", body] for body in patches), *([path, body] for path, _, body in sets)],
        )
        expected[name] = [answered(inspector.attribution, run=run, **query) for query in queries]
        expected[name] += [answered(inspector.patch, **body) for body in patches]
        expected[name] += [answered(getattr(inspector, function), **body) for _, function, body in sets]
    run_node("answers.mjs", folder)
    yield {name: (json.loads((folder / f"{name}.out.json").read_text()), expected[name]) for name in names}


@pytest.mark.parametrize("name", NAMES)
def test_attribution_and_patching_equal_those_of_the_server(
    name: str, answers: dict[str, tuple[list[Any], list[Any]]]
) -> None:
    found, expected = answers[name]
    without = {"estimate": None, "correlation": None}  # these need gradients
    require_equal(found, [one | without if "map" in one else one for one in expected])
    assert any("terms" in one for one in expected) or name not in ADDITIVE
    assert any(one.get("raised") for one in expected) or "encoder" in name
    maps = [one for one in expected if "map" in one]
    assert any(one["n_texts"] == 6 for one in maps) or name not in ("decoder", "encoder")
    shares = [share for one in maps for row in one["map"] for share in row]
    assert sum(abs(share) > 1e-2 for share in shares) > len(shares) / 4, "many places restore a part"
