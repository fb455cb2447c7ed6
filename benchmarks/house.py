"""Draw the house: the folders of the four packages and the arrows between them, from the imports themselves.

    python -m benchmarks.house            # writes docs/images/house.svg
    python -m benchmarks.house --check    # fails where the drawing is not that of today's imports

Rows are the layers of the import-linter contracts in pyproject.toml, top down. An arrow from A to B means that A
imports B; an arrow that follows from others (A to B to C) is left out. White boxes are files. Those at the foot of a
package, which every folder of it may import, share one box. A dot marks a folder that imports Ray.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
DRAWING = ROOT / "docs" / "images" / "house.svg"
ROW, BOX, GAP, HEAD = 52, 28, 20, 36
"""Heights in pixels: of a layer, of a box, between two packages, and of a package's title."""
WIDTH, LETTER = 880, 7.2
"""Pixels: of the drawing, and of a letter."""
PLACES = {
    "tuning": {"cli": 0.5, "commands": 0.4, "tables": 0.4, "clusters": 0.6, "sweep": 0.4, "search": 0.4},
    "pipeline": {
        "cli": 0.38, "diagnosis": 0.38, "run": 0.38, "mlmodel": 0.78, "tracking": 0.62, "results": 0.78,
        "execution": 0.3, "storage": 0.7, "training": 0.58, "cluster": 0.3, "config": 0.44, "methods": 0.44,
        "algorithm": 0.44,
    },
    "tasks": {
        "synthetic": 0.3, "registry": 0.78, "tabular": 0.2, "toy": 0.74, "images": 0.34, "signals": 0.5, "text": 0.66,
        "sparse": 0.84, "corpus": 0.1, "ingest": 0.12, "partition": 0.47, "metrics": 0.88, "files": 0.2, "arrays": 0.3,
    },
}  # fmt: skip
"""Where the middle of a box lies across its package, from 0 to 1, so that few arrows cross; a folder that is not here
gets a place of its own."""
STYLE = """
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; }
  .title { font-weight: bold; font-size: 15px; } .note { font-size: 12px; fill: #59636e; }
  .page { fill: #ffffff; } .package { fill: #f6f8fa; stroke: #d1d9e0; }
  .folder { fill: #ddf4ff; stroke: #54aeff; } .files { fill: #ffffff; stroke: #d1d9e0; }
  .arrow { fill: none; stroke: #818b98; stroke-width: 1.2; } .wide { stroke: #59636e; stroke-width: 4; fill: none; }
  .head { fill: #818b98; } .widehead { fill: #59636e; } .ray { fill: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .note { fill: #9198a1; } .page { fill: #0d1117; }
    .package { fill: #151b23; stroke: #3d444d; } .folder { fill: #0c2d6b; stroke: #388bfd; }
    .files { fill: #0d1117; stroke: #3d444d; } .arrow { stroke: #7d8590; } .wide { stroke: #9198a1; }
    .head { fill: #7d8590; } .widehead { fill: #9198a1; } .ray { fill: #f0883e; }
  }
"""


@dataclass
class Package:
    """A top-level package: its rows of boxes, the files at its foot, and the arrows between its boxes."""

    name: str
    rows: list[list[str]]
    foot: list[str] = field(default_factory=list)
    arrows: list[tuple[str, str]] = field(default_factory=list)
    ray: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)

    @property
    def height(self) -> int:
        return HEAD + ROW * (len(self.rows) + bool(self.foot)) - 8


def layers() -> dict[str, list[list[str]]]:
    """Return the layers of every package that has a contract, top down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return {
        contract["containers"][0].removeprefix("anchorfl."): [layer.split(" | ") for layer in contract["layers"]]
        for contract in contracts
        if contract["type"] == "layers" and "containers" in contract
    }


def packages() -> tuple[list[Package], set[tuple[str, str]]]:
    """Return the packages with the arrows inside them, and the arrows between them."""
    graph = grimp.build_graph("anchorfl", include_external_packages=True, cache_dir=None)
    pairs, ray = set(), set()
    for module in graph.modules:
        if not module.startswith("anchorfl."):
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.startswith("anchorfl."):
                pairs.add((_box(module), _box(imported)))
            elif imported == "ray":
                ray.add(_box(module))
    between = {(a[0], b[0]) for a, b in pairs if a[0] != b[0] and {"__main__", "testing"}.isdisjoint((a[0], b[0]))}
    found = []
    for name, rows in layers().items():
        folders = {path.name for path in (ROOT / name).iterdir() if (path / "__init__.py").is_file()}
        foot: list[str] = []
        while not folders & set(rows[-1]):
            foot = [*rows.pop(), *foot]
        drawn = {box for row in rows for box in row}
        inside = {(a[1], b[1]) for a, b in pairs if a[0] == b[0] == name and a != b and {a[1], b[1]} <= drawn}
        ray_here = {box for top, box in ray if top == name}
        found.append(Package(name, rows, foot, sorted(_reduced(inside)), ray_here, drawn - folders))
    found.append(Package("models", [["*"], ["encoders"]], arrows=[("*", "encoders")], files={"*"}))
    return found, between


def _box(module: str) -> tuple[str, str]:
    """Return package and box of a module: ``anchorfl.pipeline.run.prepare`` is in (pipeline, run)."""
    parts = module.split(".")
    return parts[1], parts[2] if len(parts) > 2 else ""


def _reduced(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Leave out the arrows that follow from others."""

    def reach(start: str) -> set[str]:
        new, seen = {start}, set[str]()
        while new:
            new = {b for a, b in arrows if a in new} - seen
            seen |= new
        return seen

    return {(a, b) for a, b in arrows if not any(b in reach(c) for other, c in arrows if other == a and c != b)}


def svg() -> str:
    """Return the drawing."""
    found, between = packages()
    by_name = {package.name: package for package in found}
    top = 12
    place = {"tuning": (20, top, WIDTH - 40)}
    top += by_name["tuning"].height + GAP
    place["pipeline"] = (20, top, WIDTH - 40)
    top += by_name["pipeline"].height + GAP
    place["tasks"] = (20, top, 640)
    place["models"] = (680, top, WIDTH - 700)
    height = top + by_name["tasks"].height + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        ' role="img" aria-label="Folders of AnchorFL and what they import">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
        '<marker id="widehead" viewBox="0 0 8 8" refX="5" refY="4" markerWidth="3.2" markerHeight="3.2" orient="auto">'
        '<path class="widehead" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
    ]
    for name, (x, y, wide) in place.items():
        lines += _drawn(by_name[name], x, y, wide)
    for above, below in sorted(between):
        lines += _between(above, below, place, by_name)
    note = "An arrow from A to B: A imports B. Wide: any folder above may import any folder below. Dot: imports Ray."
    lines += [f'<text class="note" x="20" y="{height - 14}">{note}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def _drawn(package: Package, x: float, y: float, wide: float) -> list[str]:
    lines = [
        f'<rect class="package" x="{x}" y="{y}" width="{wide}" height="{package.height}" rx="8"/>',
        f'<text class="title" x="{x + 14}" y="{y + 24}">{package.name}/</text>',
    ]
    labels = {name: f"{name}.py" if name in package.files else name for row in package.rows for name in row}
    boxes: dict[str, tuple[float, float, float]] = {}  # middle, upper edge, half of the width
    for number, row in enumerate(package.rows):
        for position, name in enumerate(row):
            share = PLACES.get(package.name, {}).get(name, (position + 1) / (len(row) + 1))
            boxes[name] = x + share * wide, y + HEAD + number * ROW, (len(labels[name]) * LETTER + 26) / 2
    lines += [_arrow(boxes[a], boxes[b]) for a, b in package.arrows]
    for name, (middle, upper, half) in boxes.items():
        kind = "files" if name in package.files else "folder"
        lines.append(_rectangle(kind, middle - half, upper, 2 * half, labels[name]))
        if name in package.ray:
            lines.append(f'<circle class="ray" cx="{middle + half - 8:.0f}" cy="{upper + 8:.0f}" r="3.5"/>')
    if package.foot:
        text = " · ".join(f"{name}.py" for name in package.foot)
        lines.append(_rectangle("files", x + 20, y + HEAD + len(package.rows) * ROW, wide - 40, text))
    return lines


def _rectangle(kind: str, left: float, upper: float, wide: float, text: str) -> str:
    return (
        f'<rect class="{kind}" x="{left:.0f}" y="{upper:.0f}" width="{wide:.0f}" height="{BOX}" rx="5"/>'
        f'<text x="{left + wide / 2:.0f}" y="{upper + 18.5:.0f}" text-anchor="middle">{text}</text>'
    )


def _arrow(above: tuple[float, float, float], below: tuple[float, float, float]) -> str:
    """Draw a curve from the foot of a box to the nearest point, corners apart, of the upper edge of another."""
    (x1, y1, _), (x2, y2, half) = above, below
    start, stop = y1 + BOX, y2 - 2
    end, bow = min(max(x1, x2 - half + 12), x2 + half - 12), (stop - start) * 0.45
    curve = f"M{x1:.0f} {start:.0f} C{x1:.0f} {start + bow:.0f} {end:.0f} {stop - bow:.0f} {end:.0f} {stop:.0f}"
    return f'<path class="arrow" marker-end="url(#head)" d="{curve}"/>'


def _between(above: str, below: str, place: dict[str, tuple[int, int, int]], by_name: dict[str, Package]) -> list[str]:
    """Draw a wide arrow where one package stands right above the other."""
    (x1, y1, wide1), (x2, y2, wide2) = place[above], place[below]
    start = y1 + by_name[above].height
    if y2 - start != GAP:
        return []
    middle = (max(x1, x2) + min(x1 + wide1, x2 + wide2)) / 2
    return [f'<path class="wide" marker-end="url(#widehead)" d="M{middle:.0f} {start} V{y2 - 4}"/>']


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where the drawing is not that of today's imports")
    drawing = svg()
    if not parser.parse_args().check:
        DRAWING.write_text(drawing, encoding="utf-8")
        print(f"{DRAWING}: {len(drawing) / 1024:.0f} KiB")
        return 0
    if DRAWING.read_text(encoding="utf-8") != drawing:
        print(f"{DRAWING.relative_to(ROOT)} is not current: python -m benchmarks.house", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
