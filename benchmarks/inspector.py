"""Speed of the inspector page in a browser: the time until it can be used, and the time until it answers the pointer.

    python benchmarks/inspector.py [--tokens N ...] [--rounds N] [--threads N]

The model is a decoder of 12 layers × 12 heads and width 384 with random weights and a vocabulary of 4000. Times in
seconds count from the moment at which the page sends its text; `forward` is a run of the network alone. The page is
usable when the pictures of all heads, all tokens and the next-token bars are drawn. The answer to the pointer, in
milliseconds, is the time from its event to the end of the frame that shows the highlight.
"""

import argparse
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import torch
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from glassformer.apps.inspector.app import application
from glassformer.apps.inspector.inspector import FOLDER, Inspector
from glassformer.apps.inspector.panels import calls
from glassformer.apps.inspector.worker import Worker
from glassformer.config.run import GenerationConfig, Run
from glassformer.config.transformer import RotaryPositions, Stack, TransformerConfig
from glassformer.model import Model
from glassformer.models.build import build_model
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from text import standard_library

VOCAB, MAX_LEN = 4000, 2048
WATCH = """
window.times = {};
const note = (name, isDone) => { if (!(name in times) && isDone) times[name] = performance.now() / 1000; };
const count = (selector) => document.querySelectorAll(selector).length;
const watch = () => {
    note("usable", count(".head-grid .thumb") === 144 && count("#tokens .token") > 0 && count("#side .bar") > 0);
    note("scores", count(".found-head") > 0);
    note("head", [...document.querySelectorAll(".heat-canvas")].some((x) => x.checkVisibility() && x.width > 300));
    requestAnimationFrame(watch);
};
requestAnimationFrame(watch);
window.answers = [];
addEventListener("pointermove", (event) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => answers.push(performance.now() - event.timeStamp);
    channel.port2.postMessage(0);
}), true);
"""
SENT = """() => {
    const [run] = performance.getEntriesByType("resource").filter((x) => x.name.endsWith("/api/run"));
    return [run.startTime / 1000, run.responseEnd / 1000];
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2000], help=f"at most {MAX_LEN}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="number of threads; 0 = the default of torch")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    text = standard_library(1_000_000)
    model = random_model(text)
    print(f"12 layers × 12 heads, width 384, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"medians of {arguments.rounds} rounds; the pointer: median and maximum of all moves\n")
    columns = ("forward", "answer", "usable", "scores", "head", "on tokens", "on a matrix")
    print("tokens" + "".join(f"{name:>14}" for name in columns))
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for n_tokens in arguments.tokens:
            beginning = of_length(model.tokenizer, text, n_tokens)
            rounds = [one_round(browser, model, beginning, n_tokens) for _ in range(arguments.rounds)]
            seconds = [statistics.median(times) for times in zip(*(times for times, _, _ in rounds), strict=True)]
            moves = [[ms for one in rounds for ms in one[which]] for which in (1, 2)]
            shown = [f"{x:.2f} s" for x in seconds]
            shown += [f"{statistics.median(ms):.0f}, {max(ms):.0f} ms" for ms in moves]
            print(f"{n_tokens:>6}" + "".join(f"{x:>14}" for x in shown))
        browser.close()


def random_model(text: str) -> Model:
    """Return the decoder with random weights and a tokenizer that learned from the text."""
    tokenizer = Tokenizer.train(text.splitlines(keepends=True), vocab_size=VOCAB)
    config = TransformerConfig(
        decoder=Stack(12, 12, d_ff=1536),
        d_model=384,
        max_len=MAX_LEN,
        positions=RotaryPositions(),
        vocab_size=tokenizer.vocab_size,
    )
    torch.manual_seed(0)
    network = build_model(config).eval()
    run = Run(name="random", model=config)
    return Model(network, Tokenizers(tokenizer), GenerationConfig(), run, torch.device("cpu"))


def of_length(tokenizer: Tokenizer, text: str, n_tokens: int) -> str:
    """Return a beginning of the text that has about this number of tokens."""
    return tokenizer.decode(tokenizer.encode(text[: 20 * n_tokens])[:n_tokens])


@contextmanager
def served(model: Model) -> Iterator[str]:
    """Serve the page of a model; give its address."""
    app = application(calls(Inspector(model)), FOLDER, ["127.0.0.1"], Worker())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def one_round(browser: Browser, model: Model, text: str, n_tokens: int) -> tuple[list[float], list[float], list[float]]:
    """Return the times of one visit: until each part is shown, of moves over tokens, and of moves over a matrix."""
    ids = torch.tensor([model.tokenizer.encode(text)])
    assert abs(ids.shape[1] - n_tokens) <= n_tokens // 100, "the text is cut inside a word"
    began = time.perf_counter()
    with torch.inference_mode():
        model.network(ids)
    forward = time.perf_counter() - began
    with served(model) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        page.add_init_script(WATCH)
        page.goto(f"{address}#text={quote(text, safe='')}")
        page.wait_for_function("() => times.usable && times.scores")
        sent, answered = page.evaluate(SENT)
        on_tokens = moved(page, ".token-list", 40)
        opened = page.evaluate(
            "() => { document.querySelectorAll('.head-grid .thumb')[77].click(); return performance.now() / 1000; }"
        )
        page.wait_for_function("() => times.head")
        page.locator(".heat:visible").scroll_into_view_if_needed()
        on_matrix = moved(page, ".heat:visible", 40)
        times: dict[str, float] = page.evaluate("times")
        page.close()
    until = [answered - sent, times["usable"] - sent, times["scores"] - sent, times["head"] - opened]
    return [forward, *until], on_tokens, on_matrix


def moved(page: Page, selector: str, n_moves: int) -> list[float]:
    """Move the pointer along the diagonal of an element; return the milliseconds until each answer."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1, box["y"] + 1)
    page.wait_for_timeout(300)
    page.evaluate("answers.length = 0")
    for i in range(n_moves):
        share = (i + 0.5) / n_moves
        page.mouse.move(box["x"] + share * box["width"], box["y"] + share * box["height"])
        page.wait_for_function("(n) => answers.length >= n", arg=i + 1)
    found: list[float] = page.evaluate("answers")
    return found


if __name__ == "__main__":
    main()
