"""Failures around the inspector page: a refused text, a server that ends, a run that it dropped; it recovers."""

from glassformer.model import Model
from inspector.browsing import TEXT, Open, hash_of
from inspector.conftest import OpenModel, Serve
from inspector.direct import Inspector


def test_a_refused_text_is_explained(open_model: OpenModel) -> None:
    found = open_model("decoder", refusals=True)
    refused = {"a" * 100: "the text has 1", " ": "the text is empty", "": "Write a text and press Run"}
    for text, words in refused.items():
        found.page.locator("#input textarea").fill(text)
        found.page.get_by_role("button", name="Run", exact=True).click()
        found.until("(words) => document.getElementById('status').textContent.includes(words)", words)
        status = found.status()
        assert "\n" not in status and "Traceback" not in status
        assert found.tokens("target").count() > 3, "the former text is still shown"
        found.run(TEXT)
        assert found.status() == ""


def test_the_page_recovers_when_the_server_starts_again(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    served = serve(Inspector(models["decoder"]))
    found = visit(served.address + hash_of(text=TEXT), refusals=True)
    served.stop()
    found.page.locator(".thumb").nth(1).click()
    found.until("() => document.getElementById('status').textContent.includes('The server does not answer')")
    serve(Inspector(models["decoder"]), served.port)
    found.until("() => document.getElementById('status').textContent === ''")
    found.settle()
    rows = found.cells("Head")
    assert len(rows) == 1 + found.tokens("target").count()


def test_a_run_that_the_server_dropped_is_run_again(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    inspector = Inspector(models["decoder"])
    found = visit(serve(inspector).address + hash_of(text=TEXT), refusals=True)
    inspector.runs.clear()
    found.page.evaluate("() => { const now = Date.now; Date.now = () => now() + 60_000; }")  # it waits after a run
    with found.page.expect_response("**/api/run"):
        found.page.locator(".thumb").nth(1).click()
    found.settle()
    assert found.status() == "" and len(found.cells("Head")) == 1 + found.tokens("target").count()
