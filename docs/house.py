"""Draw the rooms of the package on their floors, from its imports: `python docs/house.py` writes _static/house.svg.

A room is a folder of the core, a file beside them, or a program in `apps/`. It imports rooms of lower floors only, and
its floor is the lowest one with this property. The width of a box shows the lines of Python in the room.
"""

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "glassformer"
PICTURE = Path(__file__).parent / "_static" / "house.svg"
ROW, LEFT, LINES_PER_PIXEL, LEAST, GAP = 46, 40, 11.0, 74, 8
CORE, PROGRAM, INK = "#dbe7f3", "#f6e3cd", "#1d2733"


def room_of(module: str) -> str:
    """Return the room of a module, by its dotted name inside the package.

    >>> room_of("nn.kernels.linear"), room_of("apps.cli.main"), room_of("model")
    ('nn', 'apps.cli', 'model')
    """
    return ".".join(module.split(".")[: 2 if module.startswith("apps.") else 1])


def modules() -> dict[str, Path]:
    """Return the modules that belong to rooms, by their dotted names inside the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in found.items() if name not in ("", "apps", "__main__")}


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted names inside the package that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "glassformer":
            for alias in node.names:
                yield f"{node.module}.{alias.name}".removeprefix("glassformer.")


def floors() -> list[dict[str, int]]:
    """Return the rooms of each floor with their numbers of lines, from the bottom up."""
    lines: dict[str, int] = {}
    below: dict[str, set[str]] = {}
    for name, path in modules().items():
        room = room_of(name)
        lines[room] = lines.get(room, 0) + len(path.read_text("utf-8").splitlines())
        below.setdefault(room, set()).update(room_of(other) for other in imported(path))
    done: list[dict[str, int]] = []
    left = set(lines)
    while ready := sorted(room for room in left if not (below[room] & left) - {room}):
        done.append({room: lines[room] for room in ready})
        left -= set(ready)
    if left:
        raise ValueError(f"these rooms import each other: {sorted(left)}")
    return done


def draw() -> str:
    """Return the picture as SVG, the highest floor at the top; numbers of lines are rounded to 500."""
    rows = list(enumerate(floors(), 1))[::-1]
    shapes, width = [], 0.0
    for row, (number, rooms) in enumerate(rows):
        x, y = float(LEFT), row * ROW + GAP
        shapes.append(f'<text x="8" y="{y + 24}" fill="#6b7785">{number}</text>')
        for room, n_lines in rooms.items():
            rounded = max(500, 500 * round(n_lines / 500))
            box = max(LEAST, rounded / LINES_PER_PIXEL)
            name, colour = room.removeprefix("apps."), PROGRAM if room.startswith("apps.") else CORE
            title = f"<title>{escape(room)}: about {rounded:,} lines</title>"
            shapes.append(f'<g>{title}<rect x="{x:g}" y="{y}" width="{box:g}" height="36" rx="5" fill="{colour}"/>')
            shapes.append(f'<text x="{x + 8:g}" y="{y + 23}" fill="{INK}">{escape(name)}</text></g>')
            x += box + GAP
        width = max(width, x)
    size = f'viewBox="0 0 {width:g} {len(rows) * ROW + GAP}"'
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    label = "Rooms of the package, one row per floor"
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img" aria-label="{label}">',
                      *shapes, "</svg>\n"])  # fmt: skip


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
