"""Draws the rooms of ``rrcm/`` and the imports between them, at a commit or in the working tree.

A room is a folder or a loose module directly below ``rrcm/``. Rooms are sorted into layers: each
imports only from layers above it, and rooms that import each other in a circle share a layer.

    python -m benchmarks.import_graph --commit 227eb35 --out docs/rooms-before.png
    python -m benchmarks.import_graph --out docs/rooms-after.png
"""

import argparse
import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

ROOT = Path(__file__).parent.parent
COLOURS = ("#0b6e99", "#c8553d", "#6a994e", "#8e6c8a", "#b08900", "#444444", "#1f7a4d")


def sources(commit: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of every Python file of ``rrcm/``, at a commit or as it is on the disk."""
    if commit is None:
        for path in sorted(ROOT.glob("rrcm/**/*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        return
    for path in _git("ls-tree", "-r", "--name-only", commit, "rrcm/").splitlines():
        if path.endswith(".py"):
            yield path, _git("show", f"{commit}:{path}")


def imports(text: str) -> Iterator[str]:
    """Dotted names of the modules of ``rrcm`` that a file imports, at its top or in a function.

    ``from rrcm.core import errors`` gives ``rrcm.core.errors``: the room is the second part.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms(files: dict[str, str]) -> networkx.DiGraph:
    """The graph of rooms; ``imports`` of an edge counts pairs (file, imported name)."""
    names = {path.split("/")[1].removesuffix(".py") for path in files} - {"__init__"}
    graph = networkx.DiGraph()
    graph.add_nodes_from(sorted(names))
    edges: Counter[tuple[str, str]] = Counter()
    for path, text in files.items():
        here = path.split("/")[1].removesuffix(".py")
        for name in {*imports(text)}:
            package, _, rest = name.partition(".")
            there = rest.split(".")[0]
            if package == "rrcm" and there in names and here in names and there != here:
                edges[here, there] += 1
    for (here, there), count in edges.items():
        graph.add_edge(here, there, imports=count)
    return graph


def layers(graph: networkx.DiGraph) -> list[list[str]]:
    """Rooms by layer, the ones that import nothing first; a circle of imports is in one layer."""
    whole = networkx.condensation(graph)
    depth: dict[int, int] = {}
    for component in reversed([*networkx.topological_sort(whole)]):
        below = [depth[other] for other in whole.successors(component)]
        depth[component] = 1 + max(below, default=-1)
    found: list[list[str]] = [[] for _ in range(1 + max(depth.values()))]
    for component, level in sorted(depth.items(), key=lambda pair: pair[1]):
        found[level] += sorted(whole.nodes[component]["members"])
    return [sorted(layer) for layer in found]


def circles(graph: networkx.DiGraph) -> list[set[str]]:
    """Groups of rooms that import each other, directly or by way of others."""
    return [group for group in networkx.strongly_connected_components(graph) if len(group) > 1]


def caption(graph: networkx.DiGraph) -> str:
    """The counts of a graph in one line."""
    count = len(circles(graph))
    longest = networkx.dag_longest_path_length(networkx.condensation(graph), weight=None)
    return (
        f"{len(graph)} rooms, {graph.number_of_edges()} arrows, {longest + 1} layers, "
        f"{count or 'no'} circle{'s' * (count != 1)}"
    )


def places(graph: networkx.DiGraph) -> dict[str, tuple[float, float]]:
    """Room -> x in [0, 1] and y, its layer from the top; rooms are below those that they import.

    Within a layer, rooms are sorted by the mean x of those they import: arrows become short.
    """
    found: dict[str, tuple[float, float]] = {}
    for level, layer in enumerate(layers(graph)):
        mean = {
            room: sum(found[other][0] for other in graph[room] if other in found)
            / max(1, sum(other in found for other in graph[room]))
            for room in layer
        }
        for number, room in enumerate(sorted(layer, key=lambda one: (mean[one], one))):
            found[room] = ((number + 0.5) / len(layer), float(level))
    return found


def draw(graph: networkx.DiGraph, title: str) -> Figure:
    """Rooms as boxes, the first layer at the top, and an arrow from each to those it imports."""
    at = places(graph)
    widest = max(len(layer) for layer in layers(graph))
    figure = Figure(figsize=(max(9.0, 1.15 * widest), 7.2), layout="constrained")
    axis = figure.subplots()
    crowded = len(graph) > 30
    colours = ["#444444"] if crowded else COLOURS
    for number, (here, (x, y)) in enumerate(at.items()):
        for there in graph[here]:
            _arrow(axis, (x, y), at[there], colour=colours[number % len(colours)], faint=crowded)
    for room, (x, y) in at.items():
        axis.text(
            x,
            y,
            room,
            ha="center",
            va="center",
            fontsize=9 if crowded else 13,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "#e8f1f5", "edgecolor": "#0b6e99"},
        )
    axis.set_xlim(0, 1)
    axis.set_ylim(max(y for _, y in at.values()) + 0.4, -0.4)  # the first layer at the top
    axis.axis("off")
    axis.set_title(f"{title}: {caption(graph)}", fontsize=13)
    return figure


def _arrow(
    axis: Axes, tail: tuple[float, float], head: tuple[float, float], *, colour: str, faint: bool
) -> None:
    """An arrow up, bent where it passes a layer so that it does not run through its boxes."""
    bend = 0.0 if tail[1] - head[1] <= 1 else 0.12 * (1 if tail[0] <= head[0] else -1)
    axis.add_patch(
        FancyArrowPatch(
            tail,
            head,
            arrowstyle="-|>",
            mutation_scale=7 if faint else 12,
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=9 if faint else 14,
            shrinkB=9 if faint else 14,
            color=colour,
            alpha=0.25 if faint else 0.75,
            linewidth=0.7 if faint else 1.1,
        )
    )


def main() -> None:
    """Print the counts, the layers and circles, and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", help="of this repository; without it, the working tree")
    parser.add_argument("--out", type=Path, help="a PNG file")
    options = parser.parse_args()
    graph = rooms(dict(sources(options.commit)))
    print(caption(graph))
    for number, layer in enumerate(layers(graph)):
        print(f"layer {number}: {', '.join(layer)}")
    for circle in circles(graph):
        print(f"circle: {', '.join(sorted(circle))}")
    if options.out:
        title = f"rrcm/ at {options.commit}" if options.commit else "rrcm/"
        draw(graph, title).savefig(options.out, dpi=90, metadata={"Software": None})


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    main()
