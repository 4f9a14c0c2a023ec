"""Counts the rooms of a package and the imports between them, at a commit or in the working tree.

A room is a folder or a loose module directly below the package. Rooms are sorted into layers: each
imports only from layers before it, and rooms that import each other in a circle share a layer.

    python -m benchmarks.import_graph --commit 227eb35
    python -m benchmarks.import_graph --package pipeline
"""

import argparse
import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import networkx

ROOT = Path(__file__).parent.parent


def sources(package: str, commit: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of every Python file of a package, at a commit or as it is on the disk."""
    if commit is None:
        for path in sorted(ROOT.glob(f"{package}/**/*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        return
    for path in _git("ls-tree", "-r", "--name-only", commit, f"{package}/").splitlines():
        if path.endswith(".py"):
            yield path, _git("show", f"{commit}:{path}")


def imports(text: str) -> Iterator[str]:
    """Dotted names that a file imports, at its top, in a function, or by ``import_module``.

    ``from rrcm.core import errors`` gives ``rrcm.core.errors``: the room is the second part.
    """
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def rooms(package: str, files: dict[str, str]) -> networkx.DiGraph:
    """The rooms of a package, and an edge from each to those that it imports."""
    names = {path.split("/")[1].removesuffix(".py") for path in files} - {"__init__"}
    graph = networkx.DiGraph()
    graph.add_nodes_from(sorted(names))
    for path, text in files.items():
        here = path.split("/")[1].removesuffix(".py")
        for name in imports(text):
            whose, _, rest = name.partition(".")
            there = rest.split(".")[0]
            if whose == package and there in names and here in names and there != here:
                graph.add_edge(here, there)
    return graph


def layers(graph: networkx.DiGraph) -> list[list[str]]:
    """Rooms by layer, the ones that import nothing first; a circle of imports is in one layer."""
    components = networkx.condensation(graph)
    depth: dict[int, int] = {}
    for component in reversed([*networkx.topological_sort(components)]):
        below = [depth[other] for other in components.successors(component)]
        depth[component] = 1 + max(below, default=-1)
    found: list[list[str]] = [[] for _ in range(1 + max(depth.values()))]
    for component, level in depth.items():
        found[level] += components.nodes[component]["members"]
    return [sorted(layer) for layer in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", default="rrcm")
    parser.add_argument("--commit", help="of this repository; without it, the working tree")
    asked = parser.parse_args()
    files = dict(sources(asked.package, asked.commit))
    graph = rooms(asked.package, files)
    circles = [c for c in networkx.strongly_connected_components(graph) if len(c) > 1]
    lines = sum(text.count("\n") for text in files.values())
    print(
        f"{len(files)} modules, {lines:,} lines, {len(graph)} rooms, {graph.number_of_edges()} "
        f"arrows, {len(layers(graph))} layers, {len(circles) or 'no'} circles"
    )
    for number, layer in enumerate(layers(graph)):
        print(f"layer {number}: {', '.join(layer)}")
    for circle in circles:
        print(f"circle: {', '.join(sorted(circle))}")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    main()
