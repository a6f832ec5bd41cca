"""The page to talk in a browser: it streams, branches, shows each probability, and opens the inspector."""

import json
import math
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import torch

import glassformer
from glassformer.apps.inspector.inspector import Inspector
from glassformer.inference.engine import Engine, Step
from glassformer.model import Model
from inspector.browsing import SOURCE, Open, Visit, close, number, percents, visits
from runs import Tiny
from serving.conftest import Run, Serve
from serving.served import ask
from tolerances import printed

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Route

READY = ".composer, .form, .key, #view .empty"
MESSAGE = "red dog"
ROLES = ("user", "assistant")
KEY = "key-of-the-tests"
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
NAMELESS = """() => [...document.querySelectorAll("button, a, input, select, textarea, [role=tab]")]
    .filter((x) => x.checkVisibility())
    .filter((x) => !(x.getAttribute("aria-label") ?? x.textContent.trim()) && !x.closest("label")?.textContent.trim())
    .map((x) => x.outerHTML)"""


@pytest.fixture
def visit(window: "BrowserContext") -> Iterator[Open]:
    """Open pages; the test fails if one reports an error or calls another host."""
    with visits(window, READY) as open_page:
        yield open_page
    window.clear_cookies()


@pytest.fixture(scope="module")
def address(shared: Serve) -> str:
    """The address of a server of all models, for tests that change nothing on it."""
    return shared()


@pytest.fixture(scope="module")
def page(address: str, window: "BrowserContext") -> Iterator[Visit]:
    """A page of that server: to load it takes more processor time than most tests."""
    with visits(window, READY) as open_page:
        yield open_page(address)


@pytest.fixture
def choose(page: Visit) -> Iterator[Open]:
    """Choose a model, and a view of it, in the page that tests share; each test has views of its own."""

    def chosen(name: str, view: str = "") -> Visit:
        page.page.locator("header select").select_option(name)
        if view:
            page.page.get_by_role("tab", name=view, exact=True).click()
        reset = page.page.get_by_role("button", name="reset")
        if reset.is_visible():  # the view has settings
            reset.click()
        return page

    yield chosen
    assert page.problems == []


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """The number of steps that engines may still take: they wait in the middle of an answer until it is released."""
    step, left = Engine.step, threading.Semaphore(4)

    def allowed(engine: Engine) -> list[Step]:
        left.acquire()
        return step(engine)

    monkeypatch.setattr(Engine, "step", allowed)
    yield left
    left.release(10_000)


def settings(found: Visit, **values: float) -> None:
    """Move the sliders of the settings."""
    for name, value in values.items():
        found.page.get_by_label(name.replace("_", " "), exact=True).fill(str(value))


def say(found: Visit, text: str = MESSAGE) -> None:
    """Send a message and wait for the end of the answer."""
    box = found.page.locator(".composer textarea")
    box.fill(text)
    box.press("Enter" if found.page.locator(".composer button[title=Enter]").count() else "Control+Enter")
    finished(found)


def finished(found: Visit) -> None:
    """Wait until no answer is written, and all links to the inspector are there."""
    found.until(
        """() => document.querySelector('.composer .primary:not([hidden])') && !document.querySelector('.is-writing')
        && [...document.querySelectorAll('.answer-foot')].every((one) =>
            !one.textContent.includes('retry') || one.querySelector('.look') || !one.textContent.includes('token'))"""
    )


def texts(found: Visit) -> list[str]:
    """Return the texts of all messages, without the mark of the end."""
    read = """(all) => all.map((one) => {
        const parts = [...one.childNodes].filter((x) => !x.matches?.(".is-end"));
        return parts.map((x) => x.textContent).join("");
    })"""
    shown: list[str] = found.page.locator(".bubble, .written").evaluate_all(read)
    return shown


def pieces(found: Visit) -> "Locator":
    """Return the tokens of the last answer."""
    return found.page.locator(".written").last.locator(".piece")


def asked(address: str, **body: Any) -> Any:
    """Return the answer of the API to the same question as that of the page."""
    body = {"messages": [{"role": "user", "content": MESSAGE}], "logprobs": True, "top_logprobs": 8} | body
    status, answer = ask(f"{address}/v1/chat/completions", {"model": "chat", **body})
    assert status == 200, answer
    return answer["choices"][0]


def test_each_token_has_the_probability_of_the_api(
    address: str, visit: Open, window: "BrowserContext", models: dict[str, Model]
) -> None:
    """In the page, in the saved conversation, and in the inspector, which opens on the ids of the conversation."""
    found = visit(f"{address}/#model=chat")
    settings(found, new_tokens=12, temperature=0.8)
    found.page.get_by_label("seed").fill("5")
    say(found)
    expected = asked(address, max_tokens=12, temperature=0.8, seed=5)
    assert texts(found) == [MESSAGE, expected["message"]["content"]]
    scored = expected["logprobs"]["content"]
    card, shown, bars = found.page.locator(".details"), list[float](), list[list[float]]()
    for piece in pieces(found).all():
        piece.hover()
        shown += percents(card.locator(".details-token strong").all_inner_texts())
        bars += [percents(one.locator(".bar-text").all_inner_texts()) for one in card.locator(".bars").all()]
    assert shown == printed([math.exp(token["logprob"]) for token in scored], decimals=3)
    for token, found_bars in zip(scored, bars, strict=True):
        tops = [math.exp(top["logprob"]) for top in token["top_logprobs"]]
        assert found_bars[: len(tops)] == printed(tops, decimals=3)
    found.page.get_by_label("Colour the tokens").check()
    assert len(scored) > 3
    colours = pieces(found).evaluate_all("(all) => all.map((one) => one.style.backgroundColor)")
    assert all(colours) and len(set(colours)) > 1

    with found.page.expect_download() as saved:
        found.page.get_by_role("button", name="save", exact=True).click()
    [question, answer] = json.loads(saved.value.path().read_text("utf-8"))["messages"]
    assert question == {"role": "user", "content": MESSAGE}
    assert answer["content"] == expected["message"]["content"]
    assert [one["id"] for one in answer["tokens"]] == [one["id"] for one in scored]

    link = found.page.locator(".look").get_attribute("href") or ""
    assert link.startswith("look/chat/#text=")
    scored = [one for one in scored if one["id"] not in found_ends(models["chat"])]
    prompt = models["chat"].conversation_encoder.prompt([{"role": "user", "content": MESSAGE}])
    with visits(window) as open_inspector:
        inside = open_inspector(f"{address}/{link}")
        box = inside.page.locator("#input textarea").input_value()
        assert box == models["chat"].tokenizer.decode(prompt, skip_special=False) + expected["message"]["content"]
        titles = inside.tokens("target").evaluate_all("(all) => all.map((one) => one.title)")
        ids = [int(title.split(" · id ")[1].split(" · ")[0]) for title in titles]
        assert ids == [*prompt, *(one["id"] for one in scored)]
        shown = [
            float(title.split("log-probability ")[1].split(" ")[0].replace("−", "-")) for title in titles[len(prompt) :]
        ]
        assert shown == printed([one["logprob"] for one in scored], decimals=2)
        inside.run(MESSAGE)
        assert inside.tokens("target").count() == len(models["chat"].tokenizer.encode(MESSAGE)) + len(
            before(models["chat"])
        )


def found_ends(model: Model) -> set[int]:
    """Return the ids that end an answer."""
    return set(model.chat_settings()[0].ends)


def before(model: Model) -> list[int]:
    """Return the ids before every text."""
    return list(model.writer.before)


def test_an_edit_begins_a_branch_and_both_are_kept(address: str, visit: Open) -> None:
    """Another token also does: the answer continues from there."""
    found = visit(f"{address}/#model=chat")
    settings(found, new_tokens=6, seed=3)
    say(found, "red dog")
    say(found, "blue cat")
    first = texts(found)
    assert [first[0], first[2]] == ["red dog", "blue cat"] and len(first) == 4
    found.page.get_by_role("button", name="edit").first.click()
    box = found.page.get_by_label("Edited message")
    assert box.input_value() == "red dog"
    box.fill("green dog")
    box.press("Enter")
    finished(found)
    second = texts(found)
    assert second[0] == "green dog" and len(second) == 2
    versions = found.page.get_by_role("group", name="Versions").first
    assert versions.inner_text().split() == ["‹", "2", "/", "2", "›"]
    versions.get_by_label("Version before").click()
    assert texts(found) == first
    found.page.get_by_label("Version after").first.click()
    assert texts(found) == second
    settings(found, seed=4)
    found.page.get_by_role("button", name="retry").click()
    finished(found)
    assert found.page.get_by_role("group", name="Versions").count() == 2
    found.page.get_by_label("Version before").last.click()
    assert texts(found) == second

    settings(found, new_tokens=8, temperature=0)
    say(found)
    *history, former = texts(found)
    pieces(found).nth(1).click()
    choices = found.page.locator(".details button.bar")
    name = choices.first.locator(".bar-label").inner_text().replace("␣", " ").replace("↵", "\n")
    begun = (pieces(found).first.text_content() or "") + name
    choices.first.click()
    finished(found)
    continuation = texts(found)[-1]
    assert texts(found)[:-1] == history and continuation.startswith(begun) and continuation != former
    messages = [{"role": ROLES[i % 2], "content": text} for i, text in enumerate([*history, begun])]
    continued = asked(address, messages=messages, continue_final_message=True, max_tokens=8, temperature=0)
    assert continuation == begun + continued["message"]["content"]
    found.page.get_by_label("Version before").last.click()
    assert texts(found) == [*history, former]


def begin_long_answer(found: Visit) -> None:
    """Send a message, and wait for the first token of the answer."""
    settings(found, new_tokens=100)
    found.page.get_by_label("seed").fill("5")
    box = found.page.locator(".composer textarea")
    box.fill(MESSAGE)
    box.press("Enter")
    pieces(found).first.wait_for()


def test_an_answer_arrives_in_parts_and_stops(running: Run, visit: Open, steps: threading.Semaphore) -> None:
    found = visit(running("chat").address)
    begin_long_answer(found)
    assert found.page.locator(".is-writing").count() == 1
    stop = found.page.get_by_role("button", name="Stop")
    stop.click()
    finished(found)
    assert "stopped" in found.page.locator(".answer-foot").last.inner_text()
    assert not stop.is_visible()
    steps.release(6)  # the engine learns that the row has ended
    box = found.page.locator(".composer textarea")
    box.fill("blue cat")
    box.press("Enter")
    found.page.locator(".message").nth(3).locator(".piece").first.wait_for()
    found.page.keyboard.press("Escape")
    finished(found)
    assert found.page.locator(".answer-foot", has_text="stopped").count() == 2


@pytest.mark.usefixtures("steps")
def test_a_server_that_dies_is_reported_beside_what_it_wrote(
    running: Run, visit: Open, steps: threading.Semaphore
) -> None:
    server = running("chat")
    found = visit(server.address, refusals=True)
    begin_long_answer(found)
    server.cut()  # in the middle of the answer
    steps.release(200)
    server.stop()  # else the message that is sent again finds a server that refuses it
    found.until(
        "() => document.querySelector('.problem')?.textContent.includes('ended before the answer was complete')"
    )
    assert pieces(found).count() >= 1
    found.page.get_by_role("button", name="retry").click()
    found.until(
        "() => [...document.querySelectorAll('.problem')].some((x) => x.textContent.includes('does not answer'))"
    )


def test_a_failure_of_the_model_is_one_sentence(running: Run, visit: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    found = visit(running("chat").address, refusals=True)
    monkeypatch.setattr(Engine, "step", lambda engine: (_ for _ in ()).throw(MemoryError("no room")))
    say(found)
    assert "the model failed: MemoryError: no room" in found.page.locator(".problem").inner_text()
    monkeypatch.undo()
    found.page.get_by_role("button", name="retry").click()
    finished(found)
    assert found.page.locator(".problem").inner_text() == "" and pieces(found).count() > 0


def events_of(route: "Route") -> None:
    """Answer a conversation with hostile text everywhere."""
    token = {"token": EVIL, "logprob": -0.5, "bytes": [], "id": 1}
    score = {"content": [{**token, "top_logprobs": [token, {**token, "token": f"{EVIL}2"}]}], "refusal": None}
    choice = {"index": 0, "delta": {"content": EVIL}, "finish_reason": None, "logprobs": score}
    lines = [json.dumps({"choices": [choice], "left_out": 0}), json.dumps({"error": {"message": EVIL}})]
    route.fulfill(content_type="text/event-stream", body="".join(f"data: {line}\n\n" for line in lines))


def test_html_of_a_model_is_text(address: str, visit: Open) -> None:
    found = visit(f"{address}/#model=chat", refusals=True)
    count = found.page.locator("script, img").count()
    found.page.route("**/v1/chat/completions", events_of)
    say(found, EVIL)
    assert texts(found) == [EVIL, EVIL]
    assert EVIL in found.page.locator(".problem").inner_text()
    pieces(found).first.click()
    assert found.page.locator(".details .bar-label").all_inner_texts()[1].replace("␣", " ") == f"{EVIL}2"
    assert found.page.locator("script, img").count() == count


def test_the_keyboard_reaches_everything(address: str, visit: Open) -> None:
    found = visit(f"{address}/#model=chat")
    settings(found, new_tokens=6, temperature=0)  # a drawn text may end after one token
    page = found.page
    page.locator(".composer textarea").focus()
    page.keyboard.type(MESSAGE)
    page.keyboard.press("Enter")
    finished(found)
    assert page.evaluate("document.activeElement.matches('.composer textarea')")
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.matches('.piece')"):
            break
    page.keyboard.press("ArrowRight")
    assert page.locator(".details").is_visible()
    assert "%" in page.locator("#spoken").inner_text()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('.details button')")
    page.keyboard.press("Escape")
    assert not page.locator(".details").is_visible()
    assert page.evaluate("document.activeElement === document.querySelectorAll('.piece')[1]")
    page.get_by_role("tab", name="Conversation").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.get_by_label("Text", exact=True).is_visible()


def test_a_text_is_continued_token_by_token(address: str, choose: Open) -> None:
    found = choose("decoder")
    settings(found, new_tokens=8, temperature=0)
    say(found, "abc de")
    body = {"model": "decoder", "prompt": "abc de", "max_tokens": 8, "temperature": 0}
    _, answer = ask(f"{address}/v1/completions", body)
    assert texts(found) == [answer["choices"][0]["text"]]
    assert "look/decoder/#text=abc%20de" in (found.page.locator(".look").get_attribute("href") or "")
    found.page.get_by_role("button", name="continue", exact=True).click()
    finished(found)
    assert found.page.locator(".given").first.inner_text() == "abc de" + answer["choices"][0]["text"]


def fill_in(found: Visit, *given: str) -> None:
    """Send the texts of a form and wait for its result."""
    for i, text in enumerate(given):
        found.page.locator(".form textarea").nth(i).fill(text)
    found.page.locator(".form textarea").last.press("Control+Enter")
    found.page.locator("section.frame").first.wait_for()
    found.settle()


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
def test_a_translation_shows_the_best_targets_and_the_alignment(address: str, choose: Open, name: str) -> None:
    found = choose(name, "Translation")
    fill_in(found, SOURCE)
    body = {"model": name, "sources": SOURCE, "n_best": 4, "beam": 4, "alignment": True}
    targets = ask(f"{address}/v1/translate", body)[1]["data"][0]["targets"]
    assert len(targets) == 4
    shown = found.page.locator(".target")
    assert shown.locator(".target-text").all_inner_texts() == [one["text"] or "(empty)" for one in targets]
    for place, target in zip(shown.all(), targets, strict=True):
        facts = place.locator(".facts").inner_text()
        assert number(facts.split()[1]) == printed(target["score"], decimals=3)
        place.click()
        rows = found.cells("Alignment")
        alignment = target["alignment"]
        assert rows[0][1:] == alignment["source_tokens"] and [row[0] for row in rows[1:]] == alignment["target_tokens"]
        assert close(found.numbers("Alignment"), torch.tensor(alignment["weights"]))
        assert found.frame("Alignment").locator("svg path").count() > 0
        link = found.page.locator(".look").get_attribute("href")
        assert link == f"look/{name}/#source={quote(SOURCE, safe='')}&target={quote(target['text'], safe='')}"


def test_a_target_shows_the_probability_of_each_token(address: str, choose: Open) -> None:
    found = choose("recurrent", "Token by token")
    settings(found, temperature=1)
    found.page.get_by_label("seed").fill("2")
    say(found, SOURCE)
    body = {"model": "recurrent", "prompt": SOURCE, "max_tokens": 256, "temperature": 1, "seed": 2, "logprobs": 8}
    [choice] = ask(f"{address}/v1/completions", body)[1]["choices"]
    assert texts(found) == [choice["text"]]
    shown = list[float]()
    for piece in pieces(found).all():
        piece.click()
        shown += percents(found.page.locator(".details-token strong").all_inner_texts())
        assert found.page.locator(".details button.bar").count() == 0, "a target has no other versions"
        found.page.keyboard.press("Escape")
    expected = [math.exp(one) for one in choice["logprobs"]["token_logprobs"]]
    assert len(expected) > 1 and shown == printed(expected, decimals=3)


def test_a_candidate_of_a_mask_is_written_into_the_text(address: str, choose: Open) -> None:
    found = choose("encoder")
    text = "abc [MASK] fgh [MASK]"
    fill_in(found, text)
    [filled] = ask(f"{address}/v1/fill-mask", {"model": "encoder", "text": text, "n": 8})[1]["data"]
    assert found.frame("Filled text").locator(".written").inner_text() == filled["text"]
    for i, candidates in enumerate(filled["candidates"], 1):
        shown = percents(found.frame(f"Mask {i}").locator(".bar-text").all_inner_texts())
        assert shown == printed([one["probability"] for one in candidates], decimals=3)
    found.frame("Mask 2").locator("button.bar").nth(1).click()
    chosen = filled["candidates"][1][1]["text"].strip()
    assert found.page.locator(".form textarea").input_value() == f"abc [MASK] fgh {chosen}"


def test_forms_show_the_numbers_of_the_api(serve: Serve, visit: Open, models: dict[str, Model], tiny: Tiny) -> None:
    """Labels, tags, the number of a regression, and the masks that a denoiser fills."""
    kinds = {"tagger": "tags", "rater": "regression", "denoiser": "infilling"}
    address = serve("classifier", **{name: glassformer.load(tiny(kind)) for name, kind in kinds.items()})
    found = visit(f"{address}/#model=classifier")
    fill_in(found, "the dog red")
    [labels] = ask(f"{address}/v1/classify", {"model": "classifier", "texts": "the dog red"})[1]["data"]
    bars = found.frame("Labels").locator(".bar")
    shown = {
        bar.locator(".bar-label").inner_text(): percents([bar.locator(".bar-text").inner_text()])[0]
        for bar in bars.all()
    }
    assert shown == printed(labels["classes"], decimals=3)

    found.page.locator("header select").select_option("tagger")
    fill_in(found, "the dog red")
    [tags] = ask(f"{address}/v1/tag", {"model": "tagger", "sentences": "the dog red"})[1]["data"]
    rows = [row.split() for row in found.frame("Tags").locator(".tags li").all_inner_texts()]
    assert [row[:2] for row in rows] == [[word, tag] for word, tag in zip(tags["words"], tags["tags"], strict=True)]
    assert [float(row[2]) / 100 for row in rows] == printed(tags["probabilities"], decimals=3)

    found.page.locator("header select").select_option("rater")
    assert found.page.locator("#view section.frame").count() == 0, "the result of another model is gone"
    fill_in(found, "the dog red")
    [rated] = ask(f"{address}/v1/classify", {"model": "rater", "texts": "the dog red"})[1]["data"]
    assert number(found.frame("Number").locator(".big").inner_text()) == printed(rated["number"], decimals=4)

    found.page.locator("header select").select_option("denoiser")
    found.page.get_by_role("tab", name="Masks").click()
    fill_in(found, "abc [MASK] fgh")
    [filled] = ask(f"{address}/v1/fill-mask", {"model": "denoiser", "text": "abc [MASK] fgh"})[1]["data"]
    assert found.frame("Filled text").locator(".written").inner_text() == filled["text"].strip()


def test_no_model_has_a_page_that_is_too_wide(address: str, visit: Open, models: dict[str, Model]) -> None:
    """Without an answer, with one, and with the settings; each control has a name."""
    found = visit(address, width=390, height=844)
    for name in models:
        found.page.locator("header select").select_option(name)
        for title in found.page.locator("#tabs [role=tab]:visible").all_inner_texts() or [""]:
            if title:
                found.page.get_by_role("tab", name=title, exact=True).click()
            for step in ("empty", "answer", "settings"):
                if step == "answer" and found.page.locator(".composer").count():
                    say(found, "red dog sees " + "a" * 60 if name == "chat" else "red dog sees")
                    pieces(found).first.click()
                button = found.page.get_by_role("button", name="settings")
                if step == "settings" and button.is_visible():
                    button.click()
                    assert found.page.locator("#side").is_visible()
                    button.click()
                place = f"{name}: {title}: {step}"
                assert found.page.evaluate("document.documentElement.scrollWidth") <= 390, place
                assert found.page.evaluate(NAMELESS) == [], place


def test_the_page_follows_the_colour_scheme(address: str, visit: Open, choose: Open) -> None:
    """A button chooses the other colours."""
    brightness = """(selector) => {
        const colour = getComputedStyle(document.querySelector(selector)).backgroundColor.match(/\\d+/g).map(Number);
        return (colour[0] + colour[1] + colour[2]) / 3;
    }"""

    def is_light(found: Visit) -> bool:
        shown = {found.page.evaluate(brightness, selector) > 128 for selector in ("body", ".composer")}
        assert len(shown) == 1
        return shown.pop()

    assert is_light(choose("chat"))
    found = visit(f"{address}/#model=chat", scheme="dark")
    assert not is_light(found)
    for other in ("light", "dark"):
        found.page.get_by_role("button", name=other, exact=True).click()
        assert is_light(found) == (other == "light")


def test_the_page_asks_for_the_key_once(serve: Serve, visit: Open, window: "BrowserContext") -> None:
    address = serve("chat", key=KEY)
    found = visit(address, refusals=True)
    box = found.page.get_by_label("key")
    box.fill("another")
    box.press("Enter")
    found.until("() => document.querySelector('.problem').textContent === 'The key is wrong.'")
    box.fill(KEY)
    box.press("Enter")
    found.page.locator(".composer").wait_for()
    [cookie] = window.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and KEY not in cookie["value"]
    settings(found, new_tokens=4)
    say(found)
    assert pieces(found).count() > 0
    found.page.reload()
    found.page.locator(".composer").wait_for()


def test_two_models_share_a_conversation(serve: Serve, visit: Open, models: dict[str, Model]) -> None:
    found = visit(serve("chat", other=models["chat"]))
    settings(found, new_tokens=4)
    say(found)
    found.page.locator("header select").select_option("other")
    assert parse_qs(urlsplit(found.page.url).fragment)["model"] == ["other"]
    found.page.get_by_role("button", name="retry").click()
    finished(found)
    assert found.page.locator(".message h3").inner_text() == "other"
    found.page.get_by_label("Version before").click()
    assert found.page.locator(".message h3").inner_text() == "chat"


def test_old_messages_that_do_not_fit_are_named(choose: Open) -> None:
    found = choose("chat", "Conversation")
    settings(found, new_tokens=40)
    for _ in range(12):
        say(found, "red dog sees blue cat " * 2)
        if "not read the first" in found.page.locator(".message").last.inner_text():
            return
    raise AssertionError("no message was left out of a context of 160 tokens")


# Without a browser


def test_the_page_and_its_files_need_no_key_and_have_a_policy(serve: Serve) -> None:
    address = serve("chat", key=KEY)
    for path in ("/", "/page/serving/page/main.js", "/page/inspector/page/style.css"):
        with urllib.request.urlopen(address + path, timeout=60) as answer:
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/look/chat/", "/look/chat/api/model", "/v1/models"):
        assert ask(address + path)[0] == 401
    for path in ("/page/serving/run.py", "/page/serving/page/../run.py", "/page/serving/page/%2e%2e/run.py"):
        assert ask(address + path)[0] in (401, 404)


def test_a_wrong_key_gets_no_cookie_and_waits(serve: Serve) -> None:
    address = serve("chat", key=KEY)
    begin = time.monotonic()
    status, answer = ask(f"{address}/session", {"key": "é"})
    assert status == 401 and answer["error"]["message"] == "the key is wrong" and time.monotonic() - begin >= 1
    request = urllib.request.Request(f"{address}/session", json.dumps({"key": KEY}).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as found:
        cookie = found.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; ")) and "Secure" not in cookie
    with_cookie = urllib.request.Request(f"{address}/v1/models", headers={"cookie": cookie.split(";")[0]})
    with urllib.request.urlopen(with_cookie, timeout=60) as found:
        assert found.status == 200
    plain = urllib.request.Request(f"{address}/session", b"key=x", {"content-type": "text/plain"})
    with pytest.raises(urllib.error.HTTPError, match="415"):
        urllib.request.urlopen(plain, timeout=60)


def test_the_inspector_of_the_server_opens_no_other_folder(serve: Serve) -> None:
    address = serve("chat")
    for path, body in (("compare", {"folder": "/"}), ("open", {"folder": "/"}), ("train", {"name": "x"})):
        status, answer = ask(f"{address}/look/chat/api/{path}", body)
        assert status == 400 and "error" in answer, path


def test_the_prompt_is_what_the_model_reads(serve: Serve, models: dict[str, Model]) -> None:
    address, model = serve("chat", "decoder"), models["chat"]
    messages = [{"role": "user", "content": MESSAGE}]
    _, answer = ask(f"{address}/v1/chat/completions/prompt", {"model": "chat", "messages": messages})
    ids = model.conversation_encoder.prompt(messages)
    assert answer["prompts"] == [{"ids": ids, "text": model.tokenizer.decode(ids, skip_special=False)}]
    _, answer = ask(f"{address}/v1/completions/prompt", {"model": "decoder", "prompt": ["abc", "de"]})
    assert [one["ids"] for one in answer["prompts"]] == [models["decoder"].prompt_ids(text) for text in ("abc", "de")]
    begun = [*messages, {"role": "assistant", "content": "dog"}]
    body = {"model": "chat", "messages": begun, "continue_final_message": True}
    _, answer = ask(f"{address}/v1/chat/completions/prompt", body)
    assert answer["prompts"][0]["ids"] == ids + model.tokenizer.encode("dog")
    status, answer = ask(f"{address}/v1/chat/completions", {**body, "messages": messages})
    assert status == 400 and "one of the assistant" in answer["error"]["message"]


def test_streams_and_the_inspector_share_one_thread(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    address, threads = running("chat").address, set[int]()
    step = Engine.step

    def noted(engine: Engine) -> list[Step]:
        threads.add(threading.get_ident())
        return step(engine)

    monkeypatch.setattr(Engine, "step", noted)
    asked(address, max_tokens=3)
    keep = Inspector.add_run

    def kept(inspector: Inspector, *args: Any) -> Any:
        threads.add(threading.get_ident())
        return keep(inspector, *args)

    monkeypatch.setattr(Inspector, "add_run", kept)
    assert ask(f"{address}/look/chat/api/run", {"text": "red dog"})[0] == 200
    assert len(threads) == 1
