"""The numbers that the page receives equal those of the Python API, for each family."""

import base64
import json
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.apps.inspector import inspector as inspector_module
from glassformer.apps.inspector import page_data, server
from glassformer.apps.inspector.app import Packed
from glassformer.apps.inspector.panels.models import attention_formula
from glassformer.common.errors import UserError
from glassformer.config.recurrent import AttendAfter, AttendBefore, RecurrentConfig
from glassformer.config.run import InfillingConfig, SpansConfig
from glassformer.config.transformer import RelativePositions, Stack, TransformerConfig
from glassformer.inspection import texts
from glassformer.inspection.ablation import Part, ablate, effects
from glassformer.inspection.attention_maps import alignment, attention_layers
from glassformer.inspection.capture import capture
from glassformer.inspection.head_scores import network_scores, random_scores, ranked_heads, trace_scores
from glassformer.inspection.input_effects import input_effects
from glassformer.inspection.lens import lens_cells, lens_labels
from glassformer.inspection.measures import logit_measure, loss_of, measure_of
from glassformer.inspection.patching import patch_residual, patching_of
from glassformer.model import Model
from glassformer.store.lock import is_locked, locked
from glassformer.tasks.reporting import Silent
from glassformer.tokenization.tokenizer import Tokenizer
from inspector.conftest import FAMILIES
from inspector.direct import Inspector
from runs import text_run_of, tiny_run, write_text
from tolerances import NETWORK, is_close, near

TEXT = {"text": "abc de fgh"}
PAIR = {"source": "red dog sees", "target": "sieht hund rot"}


def given_to(model: Model) -> dict[str, Any]:
    return PAIR if model.is_seq2seq else TEXT


def unpacked(found: Packed, dtype: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(found.data), dtype).reshape(found.shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_equals_the_captured_weights(models: dict[str, Model], family: str) -> None:
    model = models[family]
    inspector = Inspector(model)
    found = inspector.run(**given_to(model))
    trace = capture(model, **given_to(model))
    assert found["kind"] == family and found["attention"]
    for kind, size in found["attention"].items():
        layers = attention_layers(trace, kind)
        assert size["layers"] == len(layers)
        assert [len(found[size["rows"]]), len(found[size["columns"]])] == list(layers[0].shape[2:])
        pictures = unpacked(inspector.thumbnails(found["run"], kind), "<u1")
        for i, weights in enumerate(layers):
            sent = unpacked(inspector.attention(found["run"], kind, i), "<u2") / 65535
            assert np.abs(sent - weights[0].numpy()).max() <= 1e-5
            assert np.abs(pictures[i] / 255 - weights[0].numpy()).max() <= 2e-3, "small: not reduced"


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_computed_when_a_head_is_opened(models: dict[str, Model], family: str) -> None:
    inspector = Inspector(models[family])
    found = inspector.run(**given_to(models[family]))
    assert not any(name.endswith(".weights") for name in inspector.runs[found["run"]].trace)
    for kind, size in found["attention"].items():
        for i in range(size["layers"]):
            layer = unpacked(inspector.attention(found["run"], kind, i), "<u2")
            assert len(layer) == size["heads"]
            for head, weights in enumerate(layer):
                one = unpacked(inspector.attention(found["run"], kind, i, head), "<u2")
                assert one.shape[0] == 1 and np.array_equal(one[0], weights)
        with pytest.raises(UserError, match="there is no head 9"):
            inspector.attention(found["run"], kind, 0, 9)


def test_the_first_run_is_prepared_and_not_repeated(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    inspector = Inspector(models["decoder"], [{"text": "abc de"}])
    server.prepare(inspector)
    (name,) = inspector.runs
    assert any(".blocks." in tensor for tensor in inspector.runs[name].part)
    monkeypatch.setattr(inspector_module, "show", lambda *given: pytest.fail("the run was repeated"))
    assert inspector.run(text="abc de")["run"] == name
    server.prepare(Inspector(models["decoder"], [{"text": "a" * 99}]))  # too long: the page reports it


@pytest.mark.parametrize("shape", [(5, 5), (48, 49), (100, 130)])
def test_a_thumbnail_has_the_maxima_of_adaptive_pooling(shape: tuple[int, int]) -> None:
    weights = torch.rand(3, *shape)
    size = [min(n, page_data.THUMBNAIL) for n in shape]
    expected = (torch.nn.functional.adaptive_max_pool2d(weights, size) * 255).round().to(torch.uint8)
    assert torch.equal(page_data.thumbnails(weights), expected)


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder", "recurrent"])
def test_log_probabilities_and_loss_equal_the_score(models: dict[str, Model], family: str) -> None:
    model = models[family]
    found = Inspector(model).run(**given_to(model))
    if model.is_seq2seq:
        score, tokens = model.score(PAIR["target"], source=PAIR["source"]), found["written"]
    else:
        score, tokens = model.score(TEXT["text"], log=str), found["target"][1:]
    assert found["n_scored"] == score.n_tokens == len(tokens)
    assert found["loss"] == near(score.nats_per_token)
    assert sum(token["log_prob"] for token in tokens) == near(score.log_prob, terms=NETWORK)
    assert all(token["rank"] >= 1 for token in tokens)


def test_the_most_probable_token_has_rank_1() -> None:
    rows: list[dict[str, Any]] = [{"id": 0}, {"id": 2}, {"id": 2}]
    page_data.add_scores(rows, torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 1.0], [2.0, 3.0, 1.0]]))
    assert [row["rank"] for row in rows] == [1, 2, 3]


def test_a_prediction_equals_the_softmax_of_the_logits(models: dict[str, Model]) -> None:
    inspector = Inspector(models["decoder"])
    found = inspector.run(**TEXT)
    logits = torch.from_numpy(unpacked(inspector.logits(found["run"], 2), "<f4").copy())
    probabilities = logits.softmax(-1)
    token = found["target"][2]
    for token_id, name, probability in token["top"]:
        assert probability == near(float(probabilities[token_id]))
        assert name == inspector.vocabulary()["tokens"][token_id]
    assert token["entropy"] == near(float(-(probabilities * probabilities.log()).sum()), terms=NETWORK)
    best, log_prob = token["top"][0], found["target"][3]["log_prob"]
    assert best[2] == float(probabilities.max()) or best[2] == near(float(probabilities.max()))
    assert log_prob == near(float(probabilities[found["target"][3]["id"]].log()), terms=NETWORK)


def test_the_next_tokens_follow_greedy_generation(models: dict[str, Model]) -> None:
    model = models["decoder"]
    ids = Inspector(model).run(**TEXT)["target"]
    ids = [token["id"] for token in ids]
    written = []
    for _ in range(4):
        found = Inspector(model).next([*ids, *written])
        written.append(found["top"][0][0])
    assert model.tokenizer.decode(written) == model.generate(TEXT["text"], temperature=0.0, max_new_tokens=4)


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder", "recurrent"])
def test_the_next_token_comes_with_all_logits(models: dict[str, Model], family: str) -> None:
    model = models[family]
    run = Inspector(model).run(**given_to(model))
    ids, source = ([token["id"] for token in run[side]] for side in ("target", "source"))
    found = Inspector(model).next(ids, source or None)
    packed = found["logits"]
    logits = np.frombuffer(zlib.decompress(base64.b64decode(packed["zlib"])), "<f4")
    assert packed["shape"] == str(model.config.vocab_size) == str(len(logits))
    probabilities = torch.from_numpy(logits.copy()).softmax(-1)
    assert [p for _, _, p in found["top"]] == pytest.approx([float(probabilities[i]) for i, _, _ in found["top"]])
    (end,) = Inspector(model).card()["end_ids"]
    assert end == (model.translator.end_id if model.is_seq2seq else model.tokenizer.eos_id)
    assert probabilities[end] > 0 and probabilities[model.tokenizer.pad_id] == 0
    best = run["target"][-1]["top"][0][2]  # the probability of the model, with the tokens that are never written
    assert found["top"][0][2] * (1 - found["never"]) == near(best, terms=NETWORK)


def test_a_character_outside_the_vocabulary_is_named(models: dict[str, Model]) -> None:
    characters = Tokenizer.train(["abc de"], vocab_size=0, scheme="char")
    assert page_data.unknown(characters, "abc") == ""
    expected = "The vocabulary does not contain ж, я: the model reads [UNK] there."
    assert page_data.unknown(characters, "ab жя ж") == expected
    words = Tokenizer.train(["abc de"], vocab_size=0, scheme="whole_words", min_frequency=1)
    assert page_data.unknown(words, "abc ab de") == "The vocabulary does not contain ab: the model reads [UNK] there."
    assert Inspector(models["decoder"]).run(text="жя")["unknown"] == "", "bytes represent every character"


def test_the_next_tokens_of_a_pair_follow_beam_1(models: dict[str, Model]) -> None:
    model = models["recurrent"]
    inspector = Inspector(model)
    source = model.encode_source(PAIR["source"])
    ids = model.encode_target("")
    for _ in range(3):
        ids.append(inspector.next(ids, source)["top"][0][0])
    (best,) = model.translations_of_ids([source], beam=1)[0]
    assert ids[-3:] == best.hypothesis.ids[:3]


def test_the_model_writes_the_target_that_is_not_given(models: dict[str, Model]) -> None:
    model = models["encoder-decoder"]
    found = Inspector(model).run(source=PAIR["source"])
    target = [token["id"] for token in found["target"]]
    assert target == model.encode_target(model.translate(PAIR["source"]))


@pytest.mark.parametrize("objective", [InfillingConfig(), SpansConfig(n_sentinels=4)], ids=["infilling", "spans"])
def test_a_denoiser_reads_masks_and_writes_what_fill_returns(objective: Any, tmp_path: Path) -> None:
    model = glassformer.train(text_run_of(tmp_path, objective, max_steps=2), tmp_path / "run").model
    inspector = Inspector(model)
    example = inspector.card()["examples"][0]
    assert "[MASK]" in example["source"] and inspector.run(**example)["written"]
    found = inspector.run(source="abc [MASK] de")
    (mask,) = [i for i, token in enumerate(found["source"]) if token["text"] in ("[MASK]", "[SPAN_0]")]
    assert 0 < mask < len(found["source"]) - 1
    if objective.kind == "infilling":
        written = model.tokenizer.decode([token["id"] for token in found["target"]])
        assert model.fill("abc [MASK] de").text.startswith(written)


def test_masks_are_predicted_and_classes_have_probabilities(models: dict[str, Model]) -> None:
    model = models["encoder"]
    found = Inspector(model).run(text="abc [MASK] fgh")["source"]
    (place,) = [i for i, token in enumerate(found) if token["text"] == "[MASK]"]
    filled = model.fill("abc [MASK] fgh", n=3).candidates[0]
    assert found[place]["log_prob"] is None
    special = {model.tokenizer.token_to_id(token) for token in model.tokenizer.special_tokens}
    chosen = [i for i, _, _ in found[place]["top"] if i not in special]
    assert chosen[:3] == [candidate.token_id for candidate in filled]
    labels = Inspector(models["classifier"]).run(text="red dog")["labels"]
    expected = models["classifier"].classify("red dog")
    assert {x["name"]: near(x["probability"]) for x in labels} == expected


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent"])
def test_the_alignment_equals_the_plot(models: dict[str, Model], family: str) -> None:
    model = models[family]
    inspector = Inspector(model)
    found = inspector.alignment(inspector.run(**PAIR)["run"])
    expected = alignment(capture(model, **PAIR))
    assert is_close(found["weights"], expected.numpy())
    for row, column, weight in found["links"]:
        assert weight == max(found["weights"][row]) == found["weights"][row][column]


def test_the_card_has_the_facts_of_the_model(models: dict[str, Model]) -> None:
    for family in FAMILIES:
        card = Inspector(models[family]).card()
        json.dumps(card)
        assert card["kind"] == family and card["step"] == 20 and card["checkpoints"] == [10, 20]
        assert sum(part["parameters"] for part in card["parts"]) == card["parameters"]
        assert [step for step, _ in card["curves"]["validation"]] == [10, 20]


@pytest.mark.parametrize("family", [*FAMILIES, "classifier"])
def test_examples_come_from_the_validation_data(models: dict[str, Model], family: str) -> None:
    inspector = Inspector(models[family], [given_to(models[family])])
    first, *others = inspector.card()["examples"]
    assert first == given_to(models[family]) and len(others) == 3
    for example in others:
        assert inspector.run(**example)["run"]
        assert family != "encoder" or "[MASK]" in example["text"]


@pytest.mark.parametrize("family", [*FAMILIES, "classifier"])
def test_a_model_without_its_data_has_examples_that_it_can_read(
    models: dict[str, Model], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.apps.inspector.panels.models.validation_texts", lambda model, n: [])
    inspector = Inspector(models[family])
    for example in inspector.card()["examples"]:
        assert inspector.run(**example)["run"]
    monkeypatch.setitem(texts.TEXTS, "generate", ["a b", "a " * 100])
    if family == "decoder":
        assert Inspector(models[family]).card()["examples"] == [{"text": "a b"}]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"text": " "}, "the text is empty"),
        ({"text": "a" * 100}, r"the text has \d+ tokens and the model reads at most 32"),
        ({"source": "a"}, "has no source side"),
        ({"ids": [10**6]}, "an id outside the vocabulary"),
        ({"ids": []}, "the text is empty: give at least one token"),
        ({"text": "a", "model": "runs/other@1"}, "the server has not opened the folder 'runs/other': open it again"),
    ],
)
def test_a_wrong_input_is_refused(models: dict[str, Model], given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Inspector(models["decoder"]).run(**given)


def test_wrong_places_in_a_run_are_refused(models: dict[str, Model]) -> None:
    inspector = Inspector(models["decoder"])
    run = inspector.run(**TEXT)["run"]
    for call, words in (
        (lambda: inspector.attention(run, "decoder", 9), "no layer 9: the model has 2"),
        (lambda: inspector.attention(run, "cross", 0), "has no attention from a target"),
        (lambda: inspector.attention(run, "sideways", 0), "expected encoder, decoder or cross"),
        (lambda: inspector.thumbnails(run, "encoder"), "has no self-attention in an encoder"),
        (lambda: inspector.alignment(run), "has no alignment"),
        (lambda: inspector.logits(run, 99), "there is no position 99"),
        (lambda: inspector.attention("r9", "decoder", 0), "'r9' is no longer kept"),
    ):
        with pytest.raises(UserError, match=words):
            call()


@pytest.mark.parametrize("family", FAMILIES)
def test_ablation_and_effects_equal_the_functions(models: dict[str, Model], family: str) -> None:
    model = models[family]
    inspector = Inspector(model)
    run = inspector.run(**given_to(model))["run"]
    found = inspector.effects(run)
    kind = next(kind for kind in ("decoder", "encoder", "cross") if kind in found)
    off = f"{kind}.0.head.0"
    answer = inspector.ablate(run, off)
    assert answer["after"]["loss"] - answer["before"]["loss"] == near(found[kind][0][0])
    inputs = capture(model, **given_to(model)).inputs
    with ablate(model, [off]):
        expected = loss_of(model.network, inputs, measure_of(model, inputs))
        logits = capture(model, **given_to(model), names=["logits"])["logits"][0]
    if answer["measure"] == "loss":
        assert answer["after"]["loss"] == near(expected)
    sent = unpacked(inspector.logits(run, 1, off), "<f4")
    assert is_close(sent, logits[1].numpy()), "the card beside the panel shows the same model"
    top = answer["after"]["positions"][1]["top"]
    assert [i for i, _, _ in top] == logits[1].topk(5).indices.tolist()
    assert inspector.ablate(run, "")["after"]["loss"] == near(answer["before"]["loss"])
    assert inspector.ablate(run, off, mean=True)["after"]["loss"] != answer["after"]["loss"]
    with pytest.raises(UserError, match="has no part"):
        inspector.ablate(run, f"{kind}.0.head.99")
    if answer["measure"] == "loss":
        before = capture(model, **given_to(model), names=["logits"])["logits"][0, 1].log_softmax(-1)
        best = int(before.argmax())
        change = float(before[best]) - float(logits[1].log_softmax(-1)[best])
        assert inspector.effects(run, position=1)[kind][0][0] == near(change), "of one prediction"
        with pytest.raises(UserError, match="position"):
            inspector.effects(run, position=99)
    else:
        with pytest.raises(UserError, match="predicts no next token"):
            inspector.effects(run, position=1)
    with pytest.raises(UserError, match="expected a name such as"):
        inspector.ablate(run, "sideways.0")


@pytest.mark.parametrize(("family", "words"), [("decoder", ("a", "b")), ("encoder-decoder", ("hund", "katze"))])
def test_effects_on_a_logit_equal_the_function(models: dict[str, Model], family: str, words: tuple[str, str]) -> None:
    model, off = models[family], "decoder.0.head.1"
    inspector = Inspector(model)
    run = inspector.run(**given_to(model))["run"]
    inputs, asked = capture(model, **given_to(model)).inputs, {"token": words[0], "against": words[1], "position": 1}
    expected = effects(model.network, inputs, logit_measure(model, inputs, *words, 1))
    found = inspector.effects(run, logit=True, **asked)
    assert found["decoder"] == expected.heads("decoder") and found["loss"] == expected.before
    names = model.tokenizer.tokens([model.tokenizer.encode(word)[0] for word in words])
    assert [found[name] for name in ("measure", "token", "against")] == ["logit", *names]
    answer = inspector.ablate(run, off, logit=True, **asked)
    assert answer["after"]["loss"] - answer["before"]["loss"] == near(expected.changes[Part.parse(off)], terms=NETWORK)
    assert answer["measure"] == "logit" and answer["against"] == names[1]


@pytest.mark.parametrize("family", [*FAMILIES, "classifier"])
def test_the_effects_of_input_tokens_equal_the_function(models: dict[str, Model], family: str) -> None:
    model = models[family]
    inspector = Inspector(model)
    run = inspector.run(**given_to(model))
    position = None if family == "classifier" else 1
    found = inspector.inputs(run["run"], position=position)
    expected = input_effects(model, capture(model, **given_to(model)), position=position)
    assert [token["text"] for side in ("source", "target") for token in run[side]] == expected.tokens
    assert found["exact"] == expected.exact.tolist() and found["estimate"] == expected.estimated.tolist()
    assert found["logit"] == expected.logit and inspector.progress == (0, 0)
    assert found["correlation"] == pytest.approx(expected.correlation)
    best = int(expected.measure.reference[0])
    assert found["token"] == (model.classes or model.tokenizer.tokens(range(model.tokenizer.vocab_size)))[best]


def test_ablation_changes_the_labels_of_a_classifier(models: dict[str, Model]) -> None:
    model = models["classifier"]
    inspector = Inspector(model)
    answer = inspector.ablate(inspector.run(text="red dog")["run"], "encoder.0")
    with ablate(model, ["encoder.0"]):
        expected = model.classify("red dog")
    for side, scores in (("before", model.classify("red dog")), ("after", expected)):
        found = {label["name"]: label["probability"] for label in answer[side]["labels"]}
        assert found == near(scores)


def test_positions_of_a_pair_are_those_of_the_written_tokens(models: dict[str, Model]) -> None:
    inspector = Inspector(models["encoder-decoder"])
    run = inspector.run(**PAIR)
    positions = inspector.ablate(run["run"], "")["before"]["positions"]
    for position, written, read in zip(positions, run["written"], run["target"], strict=True):
        assert position["log_prob"] == near(written["log_prob"])
        assert position["top"] == read["top"][:5]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_heads_equal_the_functions(models: dict[str, Model], family: str) -> None:
    model = models[family]
    inspector = Inspector(model)
    found = inspector.scores(inspector.run(**given_to(model))["run"])
    trace = capture(model, **given_to(model))
    for kind, scores in trace_scores(trace).items():
        for name, values in scores.items():
            sent = [[head[name] for head in layer] for layer in found["kinds"][kind]["heads"]]
            assert is_close(np.array(sent, dtype=float), values.numpy(), equal_nan=True)
    if family == "recurrent":
        assert found["ranked"] == []
    else:
        ranked = ranked_heads(network_scores(model.network, trace.inputs), random_scores(model))
        assert [one["name"] for one in found["ranked"]] == list(ranked), "no head is found: the clearest of each"
        for sent in found["ranked"]:
            head = ranked[sent["name"]][0]
            assert (sent["kind"], sent["layer"], sent["head"], sent["is_found"]) == (*head[:3], head.is_found)
            uniform = found["kinds"][head.kind]["uniform"][head.layer][sent["name"]]
            assert uniform == sent["uniform"] == pytest.approx(head.uniform, nan_ok=True) or np.isnan(head.uniform)
    json.dumps(found, allow_nan=False)


def test_random_tokens_follow_twice(models: dict[str, Model]) -> None:
    inspector = Inspector(models["decoder"])
    found = inspector.run(random=True)
    ids = [token["id"] for token in found["target"]][-30:]
    assert ids[:15] == ids[15:] and len(set(ids)) == 15
    heads = inspector.scores(found["run"])["kinds"]["decoder"]["heads"]
    assert all(head["induction"] is not None for layer in heads for head in layer)
    with pytest.raises(UserError, match="is recurrent, and this needs the heads of a Transformer"):
        Inspector(models["recurrent"]).run(random=True)


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
@pytest.mark.parametrize("norm", [True, False])
def test_the_lens_equals_the_function(models: dict[str, Model], family: str, norm: bool) -> None:
    model = models[family]
    inspector = Inspector(model)
    run = inspector.run(**given_to(model))
    found = inspector.lens(run["run"], norm)
    trace = capture(model, **given_to(model))
    expected = lens_cells(model.network, trace, lens_labels(model.network, trace.inputs), norm=norm)
    assert found["layers"] == expected.layers
    for layer, row in enumerate(found["cells"]):
        for place, cell in enumerate(row):
            assert [i for i, _, _ in cell["top"]] == expected.top_ids[layer, place].tolist()
            p = float(expected.label_probability[layer, place])
            assert cell["next"] == near(p) or (cell["next"] is None and p != p)
    json.dumps(found, allow_nan=False)
    if norm:
        tokens = run["source"] if family == "encoder" else run["target"]
        assert [cell["top"][0][0] for cell in found["cells"][-1]] == [token["top"][0][0] for token in tokens]


def test_a_recurrent_model_has_no_lens(models: dict[str, Model]) -> None:
    inspector = Inspector(models["recurrent"])
    with pytest.raises(UserError, match="this model is recurrent and has no residual stream"):
        inspector.lens(inspector.run(**PAIR)["run"])


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent"])
def test_the_results_of_the_tree_equal_the_translations(models: dict[str, Model], family: str) -> None:
    model = models[family]
    found = Inspector(model).beam(PAIR["source"], beam=3, length_penalty=0.6)
    expected = model.translations(PAIR["source"], n_best=3, beam=3, length_penalty=0.6)
    assert [result["text"] for result in found["results"]] == [translation.text for translation in expected]
    for result, translation in zip(found["results"], expected, strict=True):
        assert result["score"] == near(translation.hypothesis.score)
        node = found["nodes"][result["node"]]
        assert node["log_prob"] == near(result["log_prob"])
        assert node["state"] == ("finished" if result["ended"] else "kept")
    assert {node["state"] for node in found["nodes"]} >= {"root", "kept", "pruned"}
    with pytest.raises(UserError, match="beam: expected 1 to 32, got 0"):
        Inspector(model).beam(PAIR["source"], beam=0)
    with pytest.raises(UserError, match="use it with generate, not translate"):
        Inspector(models["decoder"]).beam("a")


def test_patching_equals_the_function(models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = Inspector(model).patch("abc de", "abd de", "a", "b")
    pair = patching_of(model, "abc de", "abd de", "a", "b")
    assert is_close(found["map"], patch_residual(model.network, pair).shares.numpy())
    assert len(found["map"]) == len(found["layers"]) == 3 and len(found["map"][0]) == len(found["tokens_clean"])
    assert (found["answer"], found["wrong"]) == ("a", "b")
    with pytest.raises(UserError, match="choose words with equal numbers of tokens"):
        Inspector(model).patch("abc de", "a")


@pytest.mark.parametrize(
    ("family", "text", "changed"),
    [
        ("encoder-decoder", "red dog", "dog dog"),
        ("encoder-decoder", "the red dog sees the cat", "the red dog sees cat cat"),
    ],
)
def test_a_proposed_text_can_be_patched(models: dict[str, Model], family: str, text: str, changed: str) -> None:
    inspector = Inspector(models[family])
    assert inspector.changed(text)["changed"] == changed, "the first change with another prediction"
    assert len(inspector.patch(text, changed)["map"]) > 1
    assert inspector.changed("a") | {"model": ""} == {"model": "", "changed": None, "n_tried": 0}, "no other letter"


def test_a_proposed_text_keeps_the_mask(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def refuse(model: Model, clean: str, changed: str) -> None:
        tried.append(changed)
        raise UserError("the same prediction")

    monkeypatch.setattr("glassformer.apps.inspector.panels.interventions.patching_of", refuse)
    assert Inspector(models["encoder"]).changed("ab [MASK] cd ab")["changed"] is None
    assert tried == ["ab [MASK] cd cd", "cd [MASK] cd ab", "ab [MASK] ab ab"], (
        "repeated words first, the latest one first"
    )
    tried.clear()
    assert Inspector(models["encoder"]).changed("A [MASK] K")["changed"] is None
    assert tried == ["A [MASK] A", "K [MASK] K"], "letters of the mask are words too"
    tried.clear()
    found = Inspector(models["decoder"]).changed("ab cd")
    assert found["changed"] is None and found["n_tried"] == len(tried) == len(set(tried))
    assert tried[:2] == ["cd cd", "ab ad"] and all(text.endswith("d") for text in tried), (
        "words, then letters, then tokens that the model expects; the last one stays"
    )


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_patching_of_each_stack_equals_the_function(models: dict[str, Model], stack: Any) -> None:
    model = models["encoder-decoder"]
    given = ("red dog sees", "red cat sees", "hund", "katze")
    found = Inspector(model).patch(*given, target="sieht", stack=stack)
    pair = patching_of(model, *given, target="sieht")
    assert is_close(found["map"], patch_residual(model.network, pair, stack).shares.numpy())
    assert found["stack"] == stack and found["target"] == model.tokenizer.tokens(model.encode_target("sieht"))
    ids = model.encode_source("red cat sees") if stack == "encoder" else model.encode_target("sieht")
    assert found["tokens_corrupted"] == model.tokenizer.tokens(ids) and len(found["map"][0]) == len(ids)
    with pytest.raises(UserError, match="stack: expected encoder or decoder, got 'cross'"):
        Inspector(model).patch(*given, target="sieht", stack="cross")
    with pytest.raises(UserError, match="stack: expected encoder or decoder, got 'both'"):
        Inspector(model).patch(*given, target="sieht", stack="both")


def test_a_recurrent_model_cannot_be_patched(models: dict[str, Model]) -> None:
    with pytest.raises(UserError, match="this model is recurrent and has no residual stream"):
        Inspector(models["recurrent"]).patch("red dog sees", "red cat sees")


def test_old_runs_are_dropped(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "MAX_RUNS", 2)
    inspector = Inspector(models["decoder"])
    first, second = (inspector.run(text=text)["run"] for text in ("abc", "abd"))
    inspector.logits(first, 0)
    third = inspector.run(text="abe")["run"]
    assert list(inspector.runs) == [first, third], "the one used longest ago leaves"
    with pytest.raises(UserError, match="run the text again"):
        inspector.logits(second, 0)


def test_a_checkpoint_opens_beside_the_model(models: dict[str, Model]) -> None:
    model = models["decoder"]
    inspector = Inspector(model)
    card = inspector.compare(step=10)
    assert card["step"] == 10
    other = inspector.run(**TEXT, model=card["id"])
    expected = glassformer.load(model.folder, step=10).score(TEXT["text"], log=str).nats_per_token
    assert other["loss"] == near(expected)
    assert other["loss"] != inspector.run(**TEXT)["loss"]
    with pytest.raises(UserError, match="has another tokenizer"):
        inspector.compare(folder=str(models["classifier"].folder))
    with pytest.raises(UserError, match="give a step or a folder"):
        inspector.compare()


def test_requests_of_two_clients_reach_their_own_models(models: dict[str, Model]) -> None:
    """Each of 40 interleaved requests names one of two models; each answer equals that of a server of one model."""
    model, name = models["decoder"], str(models["decoder"].folder)
    inspector, draw = Inspector(model), random.Random(0)
    ids = [inspector.open(folder=name, step=step)["id"] for step in (20, 10)]
    alone = [Inspector(glassformer.load(name, step=step)) for step in (20, 10)]
    for _ in range(40):
        which, text = draw.randrange(2), draw.choice(["abc", "abd", "ab de"])
        if draw.random() < 0.3:
            inspector.open(folder=name, step=draw.choice([10, 20]))
        answer, expected = inspector.run(text=text, model=ids[which]), alone[which].run(text=text)
        assert (answer["model"], answer["run"], answer["loss"]) == (ids[which], expected["run"], expected["loss"])
        packed = inspector.logits(answer["run"], 1)
        assert packed.names == {"model": ids[which], "run": answer["run"]}
        assert packed.data == alone[which].logits(expected["run"], 1).data
        for found in (inspector.scores(answer["run"]), inspector.ablate(answer["run"], "decoder.0.head.0")):
            assert (found["model"], found["run"]) == (ids[which], answer["run"])


def test_a_dropped_model_is_loaded_again(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "MAX_MODELS", 1)
    inspector = Inspector(models["decoder"])
    folder = str(models["decoder"].folder)
    earlier = inspector.open(folder=folder, step=10)["id"]
    inspector.compare(folder=str(shutil.copytree(folder, f"{folder}-copy")))
    assert earlier not in inspector.models and inspector.first in inspector.models
    assert inspector.run(**TEXT, model=earlier)["model"] == earlier
    for name, words in (
        (f"{folder}@11", "has no checkpoint of step 11"),
        (f"{folder}@x", "the server has no model"),
        ("/etc@1", "the server has not opened the folder '/etc'"),
    ):
        with pytest.raises(UserError, match=words):
            inspector.card(name)


def test_the_log_of_a_run_arrives_in_pieces(tmp_path: Path) -> None:
    outcome = glassformer.train(tiny_run(write_text(tmp_path)), tmp_path / "run")
    inspector = Inspector(outcome.model)
    whole = inspector.live()
    path = outcome.folder / "metrics.jsonl"
    assert whole["offset"] == path.stat().st_size and not whole["is_running"] and whole["max_steps"] == 20
    assert [line["step"] for line in whole["lines"]] == [0, 5, 10, 10, 15, 20, 20]
    assert whole["lines"][0]["notes"] == list(outcome.notes) != []
    with path.open("a") as file:
        file.write('{"step": 25}\n{"step": ')
    later = inspector.live(since=whole["offset"])
    assert later["lines"] == [{"step": 25}], "an unfinished line waits"
    assert inspector.live(since=later["offset"])["lines"] == []
    with path.open("a") as file:
        file.write("26}\n")
    assert inspector.live(since=later["offset"])["lines"] == [{"step": 26}], "the line is read from its beginning"
    with pytest.raises(UserError, match="since: expected a place in the log, 0 or more, got -5"):
        inspector.live(since=-5)
    with locked(outcome.folder):
        assert is_locked(outcome.folder) and inspector.live()["is_running"]
    assert not is_locked(outcome.folder)


def test_the_last_step_is_known_before_the_first_checkpoint(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), max_steps=3)
    folder = tmp_path / "run"
    inspector = Inspector(None, folder=folder)
    found = []

    class Watching(Silent):
        def step(self, step: int, max_steps: int, values: dict[str, float]) -> None:
            found.append(inspector.live())

    glassformer.train(run, folder, reporter=Watching())
    assert found[0]["checkpoints"] == [] and found[0]["is_running"] and found[0]["max_steps"] == 3
    assert inspector.live()["max_steps"] == 3


@pytest.mark.parametrize(
    ("attention", "formula"),
    [
        (AttendAfter(), "softmax(qᵀ W k)"),
        (AttendAfter(score="dot"), "softmax(q · k)"),
        (AttendBefore(score="scaled_dot"), "softmax((W q) · (U k) / √d)"),
        (AttendBefore(), "softmax(vᵀ tanh(W q + U k))"),
    ],
)
def test_the_formula_of_recurrent_attention(attention: AttendAfter | AttendBefore, formula: str) -> None:
    config = RecurrentConfig(attention=attention, d_encoder=8, d_decoder=16)
    assert attention_formula(config, "cross") == f"weights = {formula}"


@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        ({}, "softmax(q·kᵀ / √d)"),
        ({"attention_scale": 1.0, "positions": RelativePositions()}, "softmax(q·kᵀ + position bias)"),
        ({"attention_scale": 0.5}, "softmax(0.5 · q·kᵀ)"),
    ],
)
def test_the_formula_of_a_transformer(settings: dict[str, Any], formula: str) -> None:
    assert attention_formula(TransformerConfig(encoder=Stack(), **settings), "encoder") == f"weights = {formula}"
