"""Steps of the tests in a browser: open the inspector page, wait for it, and read the numbers that it shows."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

import torch
from torch import Tensor

from glassformer.model import Model
from tolerances import printed

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page

READY = "#tokens .token:visible, #panels .card:visible"
"""Selector of what the page shows when it has loaded."""
TEXT = "abc de fgh"
SOURCE, TARGET = "red dog sees", "sieht hund rot"

ROWS = "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
CALM = """() => new Promise((resolve) => {
    let calm = 0;
    const frame = () => {
        calm = document.querySelector('[aria-busy="true"]') ? 0 : calm + 1;
        if (calm > 2) resolve(true); else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
})"""
CHANGE_ADDRESS = """(view) => new Promise((resolve) => {
    document.activeElement.blur();
    const before = location.href;
    addEventListener("hashchange", () => resolve(), { once: true });  // after the listener of the page
    location.hash = view;
    if (location.href === before) resolve();
})"""
ACCENT_PIXELS = """(canvas) => {
    const probe = document.createElement("span");
    probe.style.color = getComputedStyle(document.documentElement).getPropertyValue("--second");
    document.body.append(probe);
    const wanted = getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).map(Number);
    probe.remove();
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let n = 0;
    for (let i = 0; i < data.length; i += 4) n += wanted.every((x, j) => Math.abs(data[i + j] - x) < 8) ? 1 : 0;
    return n;
}"""


def given_to(model: Model) -> dict[str, Any]:
    """Return the input of the tests for a model: a text or a pair."""
    return {"source": SOURCE, "target": TARGET} if model.is_seq2seq else {"text": TEXT}


def hash_of(**view: Any) -> str:
    """Return the part of an address that restores a view; without a panel, the panel of the attention."""
    return "#" + "&".join(
        f"{key}={quote(str(value), safe='')}" for key, value in {"panel": "attention", **view}.items()
    )


VIEWS = {
    **dict.fromkeys(("Alignment", "Heads"), "Attention"),
    **dict.fromkeys(("Logit lens", "Attribution", "Input tokens"), "Why"),
    **dict.fromkeys(("Ablation", "Patching"), "Change"),
    **dict.fromkeys(("Step by step", "Beam search"), "Write"),
    **dict.fromkeys(("Compare", "Units", "Experts", "Training"), "More"),
}
"""The view of a panel."""


@dataclass
class Visit:
    """A page with a record of its requests and its problems."""

    page: "Page"
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    expects_refusals: bool = False
    """True if the server refuses a request of the test, or is stopped: the console then names these requests."""

    def listen(self) -> None:
        """Record each request, console error, exception and dialog."""
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("popup", lambda popup: self.problems.append(f"another window: {popup.url}"))
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _console(self, message: "ConsoleMessage") -> None:
        is_refusal = message.text.startswith("Failed to load resource")
        is_ours = "willReadFrequently" in message.text  # `accent_pixels` reads a canvas
        if message.type in ("error", "warning") and not is_ours and not (is_refusal and self.expects_refusals):
            self.problems.append(f"{message.type}: {message.text}")

    def check(self, origin: str) -> None:
        """Require that the page had no problem and made no request to another origin."""
        assert self.problems == []
        schemes = ("data", "blob")
        assert all(url.startswith(origin) or urlsplit(url).scheme in schemes for url in self.requests), self.requests

    # waiting

    def settle(self) -> None:
        """Wait until no panel waits for the server and all changes are drawn; hidden tabs draw slowly."""
        self.page.bring_to_front()
        self.page.wait_for_function(CALM)

    def until(self, condition: str, argument: Any = None) -> None:
        """Wait for a condition in JavaScript."""
        self.page.wait_for_function(condition, arg=argument)

    def becomes(self, read: Callable[[], Any], expected: Any) -> None:
        """Wait until `read()` is `expected`: a panel may draw after the page is calm, for example after a reload."""
        end = time.monotonic() + 60
        while (found := read()) != expected and time.monotonic() < end:
            self.settle()
        assert found == expected

    def show(self, view: str, width: int = 1280, height: int = 800) -> None:
        """Show a view, the part of an address that `hash_of` returns, with the pointer in a corner."""
        self.page.bring_to_front()
        if self.page.viewport_size != {"width": width, "height": height}:
            self.page.set_viewport_size({"width": width, "height": height})
        self.page.mouse.move(0, 0)
        self.view()  # the page has written the address of its former view
        self.page.evaluate(CHANGE_ADDRESS, view)
        self.settle()

    def open_tab(self, title: str) -> None:
        """Choose the view of a panel, and the panel if the view has several; wait for it."""
        self.page.locator("#tabs").get_by_role("tab", name=VIEWS.get(title, title), exact=True).click()
        part = self.page.locator("#parts").get_by_role("tab", name=title, exact=True)
        if part.is_visible():
            part.click()
        self.settle()

    def panels(self) -> dict[str, list[str]]:
        """Open each view, and return the titles of its panels; those of a single panel are not shown."""
        found = {}
        for view in self.page.locator("#tabs [role=tab]:not(.only-narrow)").all_inner_texts():
            self.page.locator("#tabs").get_by_role("tab", name=view, exact=True).click()
            self.settle()
            found[view] = self.page.locator("#parts:not([hidden]) [role=tab]").all_inner_texts()
        return found

    def panel(self) -> str:
        """Return the name of the open panel, as in the address."""
        return self.page.locator("body").get_attribute("data-panel") or ""

    def run(self, *texts: str) -> None:
        """Write the text, or the source and the target, and run the model."""
        boxes = self.page.locator("#input textarea")
        for i, text in enumerate(texts):
            boxes.nth(i).fill(text)
        with self.page.expect_response("**/api/run"):
            self.page.get_by_role("button", name="Run", exact=True).click()
        self.settle()

    # parts of the page

    def frame(self, title: str) -> "Locator":
        """Return the card with a title."""
        return self.page.locator(f'section.frame[aria-label="{title}"]:visible')

    def tokens(self, side: str) -> "Locator":
        """Return the tokens of a side at the top of the page."""
        return self.page.locator(f'#tokens .token[data-side="{side}"]')

    def status(self) -> str:
        """Return the text of the status line."""
        return self.page.locator("#status").inner_text()

    def view(self) -> dict[str, str]:
        """Return the view that the address names, after it has been written."""
        self.until("() => !('unwritten' in document.body.dataset)")
        parts = urlsplit(self.page.url).fragment.split("&")
        return dict(part.split("=", 1) for part in parts if part)

    def set_slider(self, label: str, value: float) -> None:
        """Move a slider."""
        self.page.locator("label.slider:visible", has_text=label).locator("input").fill(str(value))
        self.settle()

    def cells(self, title: str) -> list[list[str]]:
        """Return the cells of the table that a card shows in place of its picture, the header first."""
        card = self.frame(title)
        toggle = card.get_by_role("button", name="table", exact=True)
        toggle.evaluate("(button) => button.click()")
        card.locator(".alternative tr").first.wait_for(state="attached")  # a card may still wait for its numbers
        found: list[list[str]] = card.locator(".alternative tr").evaluate_all(ROWS)
        toggle.evaluate("(button) => button.click()")
        return found

    def numbers(self, title: str, first: int = 1) -> Tensor:
        """Return the numbers of this table, from column `first` on."""
        return torch.tensor([[number(cell) for cell in row[first:]] for row in self.cells(title)[1:]])

    def accent_pixels(self, canvas: "Locator") -> int:
        """Return the number of pixels of a canvas that have the colour of a highlight."""
        return int(canvas.evaluate(ACCENT_PIXELS))


def number(text: str) -> float:
    """Return a number as the page writes it, with a minus sign in place of a hyphen; NaN for a dash."""
    text = text.replace("−", "-").replace(",", "")
    return float("nan") if text == "–" else float(text)


def percents(texts: list[str]) -> list[float]:
    """Return percentages as fractions of 1."""
    return [0.0 if text.startswith("<") else float(text.removesuffix(" %")) / 100 for text in texts]


def close(shown: Tensor, expected: Tensor) -> bool:
    """Return True if shown numbers equal the expected ones."""
    assert shown.shape == expected.shape
    return shown.numpy() == printed(expected.numpy(), figures=4)


Open = Callable[..., Visit]
Scheme = Literal["light", "dark"]
DRAWS = "let draw = 7; Math.random = () => (draw = draw * 16807 % 2147483647) / 2147483647;"
"""Gives a page the same random numbers at each visit (Park and Miller 1988), so that it asks for the same texts."""


@contextmanager
def visits(window: "BrowserContext", ready: str = READY) -> Iterator[Open]:
    """Give a function that opens an address and waits for an element of the selector `ready`.

    At the end, the pages must have had no problem.
    """
    opened: list[tuple[Visit, str]] = []

    def visit(
        address: str, *, refusals: bool = False, width: int = 1280, height: int = 800, scheme: Scheme = "light"
    ) -> Visit:
        found = Visit(window.new_page(), expects_refusals=refusals)
        found.page.add_init_script(DRAWS)
        found.page.set_viewport_size({"width": width, "height": height})
        found.page.emulate_media(color_scheme=scheme)
        found.listen()
        found.page.goto(address)
        parts = urlsplit(address)
        opened.append((found, f"{parts.scheme}://{parts.netloc}/"))
        found.page.locator(ready).first.wait_for()
        found.settle()
        return found

    yield visit
    for found, origin in opened:
        found.page.evaluate("localStorage.clear()")
        found.page.close()
        found.check(origin)
