"""Run the commands of pages for real and write what they print back into the pages.

    .venv/bin/python docs/refresh.py docs/tutorials/own-text.md …

A block that begins with `$ ` holds commands and their output. Each command runs in the shell, in a new folder that all
blocks of a page share. A block of language `python` runs too, and the block of language `text` after it gets what it
printed. Long output keeps its first and last lines. A picture of `docs/_static/tutorials` that a page shows is replaced
by the file of the same name that its commands write. For a page that shows `_static/terminal-during.svg`, the first
command `glassformer train` of the page runs once more in a terminal of 80 columns, which is drawn (`draw_terminal`).
Tests run the same commands with fewer steps and compare the shape
of what is printed, so a page that is out of date fails there.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STAGE = re.compile(r"[a-z ]+: [\d.]+ s")
"""The time of a stage, which is printed on slow machines only, so pages leave it out."""
N_FIRST, N_LAST = 12, 10
"""Lines of a long output that are kept."""


def refresh(page: Path, folder: Path) -> str:
    """Return the text of a page with the output that its commands print now. Commands run in the folder."""
    printed = ""

    def replaced(block: re.Match[str]) -> str:
        nonlocal printed
        language, text = block[1], block[2]
        if language == "python":
            printed = run([sys.executable, "-c", text], folder)
        elif language == "text" and printed:
            text, printed = shortened(printed), ""
        elif text.startswith("$ "):
            commands: list[str] = re.findall(r"^\$ ((?:.*\\\n)*.*)", text, re.MULTILINE)
            text = "".join(f"$ {command}\n{shortened(run(command, folder))}" for command in commands)
        return f"```{language}\n{text}```"

    return BLOCK.sub(replaced, page.read_text("utf-8"))


def run(command: str | list[str], folder: Path) -> str:
    """Run a command and return its output, standard error included; exit if the command fails."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    print(command if isinstance(command, str) else "python …", file=sys.stderr)
    done = subprocess.run(
        command,
        cwd=folder,
        shell=isinstance(command, str),
        env=os.environ | {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if isinstance(command, str) else None,
        text=True,
    )
    if done.returncode not in (0, 1):  # 1: a check that failed, which a page may show
        sys.exit(f"{command} ended with code {done.returncode}:\n{done.stdout}")
    return done.stdout.replace(f"{folder}/", "…/")


def draw_terminal(command: str, folder: Path) -> None:
    """Run a training in a terminal of 80 columns, and draw the terminal during and after it as SVG."""
    run(f"script -qec 'stty cols 80; NO_COLOR= TERM=xterm-256color {command}' screen", folder)
    written = (folder / "screen").read_bytes().decode().replace("\r\n", "\n")
    written = re.sub(r"\x1b\[\?25[lh]|^Script .*\n", "", written, flags=re.MULTILINE)
    halfway = next(
        m.end() for m in re.finditer(r"(\d+)/(\d+)  batch loss[^\r\n]* left", written) if 2 * int(m[1]) >= int(m[2])
    )
    for name, text in (("during", written[: written.index("\r", halfway)]), ("after", written)):
        text = re.sub(r"[^\n]*\n\r?\x1b\[1A\x1b\[2K", "", text)  # a bar that is removed
        text = re.sub(r"[^\n]*\r\x1b\[2K", "", text)  # a bar that is replaced
        console = Console(record=True, width=80, file=io.StringIO())
        console.print(Text.from_ansi(text.rstrip()), soft_wrap=True)
        svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=command), flags=re.DOTALL)
        (ROOT / "docs" / "_static" / f"terminal-{name}.svg").write_text(svg, "utf-8")


def shortened(text: str) -> str:
    """Keep the first and the last lines of a long text, with an ellipsis between them.

    >>> shortened("".join(f"{n}\\n" for n in range(20))).splitlines()[7:10]
    ['7', '…', '12']
    """
    lines = [line.rstrip() for line in text.strip("\n").splitlines() if not STAGE.fullmatch(line)]
    if len(lines) > N_FIRST + N_LAST + 1:
        lines = [*lines[:N_FIRST], "…", *lines[-N_LAST:]]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            text = refresh(Path(name), Path(folder))
            for picture in re.findall(r"_static/tutorials/([\w-]+\.png)", text):
                drawn = Image.open(Path(folder) / picture).convert("RGB").quantize(256)
                drawn.save(ROOT / "docs" / "_static" / "tutorials" / picture, optimize=True)
            if "_static/terminal-during.svg" in text:
                shutil.rmtree(Path(folder) / "runs")
                [command, *_] = re.findall(r"^\$ (glassformer train .*)", text, re.MULTILINE)
                draw_terminal(command, Path(folder))
        Path(name).write_text(text, "utf-8")
