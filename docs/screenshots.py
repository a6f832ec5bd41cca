"""Take pictures of the pages for the documentation, with chromium.

    .venv/bin/python docs/screenshots.py              # or: make screenshots
    .venv/bin/python docs/screenshots.py demo=DIR     # use the model in DIR

Each picture shows a model of `MODELS`. A model whose folder is missing is trained first: about three minutes for all on
two cores. The pictures are `docs/_static/inspector-NAME.png`, `docs/_static/flow.webp`, an animation of the flow, and
`docs/_static/talk.png` of the server's page, if `runs/smollm2` exists (`make chat`).
"""

import io
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image, ImageOps
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "_static"
GLASSFORMER = [sys.executable, "-m", "glassformer"]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDE, PHONE = (1280, 800), (390, 844)
MAX_BYTES = 150_000
N_COLOURS = 160
SETTLE_MS = 1200
FRAME_MS = 2200
"""Time of a stage in the animation of the flow."""

REPEATS = Path("runs") / "repeats.jsonl"
TALKS = Path("runs") / "smollm2"
MODELS = {
    "demo": ["train", "python-docs"],
    "repeats": ["train", "copy-task", "--data.path", str(REPEATS)],
    "reverse-bahdanau": ["train", "reverse-bahdanau"],
    "reverse-transformer": ["train", "reverse-transformer"],
}
"""Names of models, in the folders `runs/NAME`, and the arguments that train them."""


@dataclass(frozen=True)
class Picture:
    """A view of the page: a model, the address after `#`, the buttons to press, and the place to scroll to."""

    name: str
    model: str
    view: dict[str, str | int]
    press: tuple[str, ...] = ()
    scroll: str = ""
    """CSS selector of the element at the top of the picture; by default the top of the page."""
    size: tuple[int, int] = WIDE


REPEATED = {"text": "blacksmith|blacksmith"}
DEMO = {"text": "The finally clause is always executed before the"}
PAIR = {"clean": "blacksmith|black", "corrupted": "blackdmith|black"}
FLOW = ("repeats", {"text": "blacksmith|bl", "panel": "flow", "flow": "decoder.1.0.tokens"})
"""Model and view of the animation, at its first stage."""
PICTURES = [
    Picture("flow", FLOW[0], {**FLOW[1], "flow": "decoder.1.0.self_attn.scores"}),
    Picture("heads", "repeats", {**REPEATED, "panel": "attention"}),
    Picture(
        "attention",
        "repeats",
        {**REPEATED, "panel": "attention", "layer": 1, "head": 0, "pos": 13},
        scroll="#tabs",
    ),
    Picture("ablation", "repeats", {**REPEATED, "panel": "ablation", "off": "decoder.1.0", "pos": 13}),
    Picture(
        "effects",
        "repeats",
        {**REPEATED, "panel": "ablation"},
        press=("Measure all",),
        scroll="#tabs",
    ),
    Picture("patch", "repeats", {**REPEATED, **PAIR, "panel": "patch"}, press=("Patch",)),
    Picture("training", "repeats", {**REPEATED, "panel": "training"}),
    Picture("phone", "repeats", {**REPEATED, "panel": "attention"}, size=PHONE),
    Picture("demo", "demo", {**DEMO, "panel": "attention"}, scroll="#tokens"),
    Picture("lens", "demo", {**DEMO, "panel": "lens"}),
    Picture("steps", "demo", {"text": "The function returns", "panel": "steps"}, press=("Step",) * 6),
    Picture("alignment", "reverse-bahdanau", {"source": "magnolia", "panel": "alignment"}),
    Picture(
        "beam",
        "reverse-transformer",
        {"source": "falcon", "panel": "beam", "beam": 3},
        scroll=".panel .card:nth-child(2)",
    ),
]


def main(folders: dict[str, Path]) -> None:
    """Train the models that are missing, and take all pictures; `folders` are those of models that exist."""
    places = {name: folders.get(name, Path("runs") / name) for name in MODELS}
    for name, arguments in MODELS.items():
        if not (places[name] / "model.safetensors").exists():
            write_repeats(REPEATS)
            subprocess.run([*GLASSFORMER, *arguments, "--out", str(places[name])], check=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for name, folder in places.items():
            with served("inspect", str(folder), "--no-browser") as address:
                for picture in PICTURES:
                    if picture.model == name:
                        width, height = picture.size
                        page = browser.new_page(viewport={"width": width, "height": height})
                        take(page, address, picture)
                        page.close()
                if name == FLOW[0]:
                    take_flow(browser.new_page(viewport={"width": 1280, "height": 800}), address, FLOW[1])
        if TALKS.exists():
            with served("serve", str(TALKS)) as address:
                take_talk(browser.new_page(viewport={"width": 1280, "height": 640}), address.removesuffix("v1"))
        browser.close()


def write_repeats(path: Path) -> None:
    """Write 20,000 records of 4 to 14 different letters, a bar, and the same letters again."""
    path.parent.mkdir(exist_ok=True)
    draw = random.Random(0)
    words = ["".join(draw.sample("abcdefghijklmnopqrstuvwxyz", draw.randint(4, 14))) for _ in range(20_000)]
    path.write_text("".join(json.dumps({"text": f"{word}|{word}"}) + "\n" for word in words))


@contextmanager
def served(*command: str) -> Iterator[str]:
    """Run a command that serves a page; yield the address that it prints."""
    process = subprocess.Popen([*GLASSFORMER, *command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield next(word for word in process.stdout.readline().split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait()


def take(page: Page, address: str, picture: Picture) -> None:
    """Open a view, wait for its answers, and write its picture with at most `N_COLOURS` colours."""
    page.goto(f"{address}#{urlencode(picture.view).replace('+', '%20')}")
    page.wait_for_load_state("networkidle")
    for label in picture.press:
        page.get_by_role("button", name=label, exact=True).first.click()
        page.wait_for_load_state("networkidle")
    page.wait_for_timeout(SETTLE_MS)
    if picture.scroll:
        page.locator(picture.scroll).first.evaluate("element => element.scrollIntoView()")
        page.wait_for_timeout(SETTLE_MS)
    write(page, OUT / f"inspector-{picture.name}.png")


def take_flow(page: Page, address: str, view: dict[str, str]) -> None:
    """Walk through the stages of the flow, and write them as an animation."""
    page.goto(f"{address}#{urlencode(view).replace('+', '%20')}")
    page.locator(".flow-picture svg").wait_for()
    stages, frames = page.locator(".flow-stages button:not(.closed-block)"), []
    for stage in range(stages.count()):
        stages.nth(stage).click()
        page.wait_for_timeout(SETTLE_MS)
        picture = page.locator(".panel .card").first.screenshot(animations="disabled")
        frames.append(Image.open(io.BytesIO(picture)).convert("RGB"))
    height = max(frame.height for frame in frames)
    first, *others = (ImageOps.pad(frame, (frame.width, height), color="white", centering=(0, 0)) for frame in frames)
    path = OUT / "flow.webp"
    first.save(path, save_all=True, append_images=others, duration=FRAME_MS, loop=0, lossless=True, method=6)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def take_talk(page: Page, address: str) -> None:
    """Ask a question on the page of the server, and show the alternatives of a token of the answer."""
    page.goto(address)
    page.get_by_label("temperature").fill("0")
    page.locator(".composer textarea").fill("Why is the sky blue? Answer in one sentence.")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("look inside").wait_for(timeout=120_000)
    page.get_by_label("Colour the tokens").check()
    page.locator(".piece").nth(12).click()
    page.wait_for_timeout(SETTLE_MS)
    write(page, OUT / "talk.png")


def write(page: Page, path: Path) -> None:
    """Write a picture of a page with at most `N_COLOURS` colours."""
    image = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    image.quantize(N_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")
    if size > MAX_BYTES:
        raise SystemExit(f"{path} is larger than {MAX_BYTES:,} bytes: lower N_COLOURS")


if __name__ == "__main__":
    main({name: Path(folder) for name, _, folder in (word.partition("=") for word in sys.argv[1:])})
