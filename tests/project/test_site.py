"""`make docs` makes a site of all pages and the public API, with no warning and no dead link."""

import html
import inspect
import json
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sphinx.util.inventory import InventoryFile
from workspace import ROOT, Workspace, once

import rrcm

PAGES = sorted(ROOT.glob("docs/*.md"))
INDEX = (ROOT / "docs/index.md").read_text()
THEORY = (ROOT / "docs/theory.md").read_text()
SOURCE = re.compile(r"\beq\. \d+|arXiv:\d{4}\.\d{5}|\(\d{4}\)|\bet al\., \d{4}")
COMMAND = re.search(
    r"^docs:.*\n\t\$\(BIN\)/(sphinx-build .*) site$", (ROOT / "Makefile").read_text(), re.M
)[1]


@pytest.fixture(scope="session")
def site(shared: Path) -> Path:
    """The site, built as `make docs` does; a page in no contents or a link to nowhere fails it."""
    program, *options = shlex.split(COMMAND)

    def make(path: Path) -> None:
        Workspace(ROOT).run(program, *options, str(path))

    return once(shared / "site", make).path


def public() -> Iterator[tuple[str, ModuleType | None, object]]:
    """(name, its module, what it is) of all that `rrcm` promises, modules included."""
    for name in {*rrcm.__all__} - {"__version__"}:
        yield from below(f"rrcm.{name}", None)


def below(name: str, module: ModuleType | None) -> Iterator[tuple[str, ModuleType | None, object]]:
    thing = pkgutil.resolve_name(name)
    yield name, module, thing
    if not inspect.ismodule(thing):
        return
    found = pkgutil.iter_modules(getattr(thing, "__path__", []))
    inner = [info.name for info in found if info.name[0] != "_"]
    own = [
        key
        for key, value in vars(thing).items()
        if key[0] != "_" and getattr(value, "__module__", None) == thing.__name__
    ]
    for key in {*inner, *getattr(thing, "__all__", own)}:
        value = pkgutil.resolve_name(f"{name}.{key}")
        if inspect.ismodule(value) or callable(value):
            yield from below(f"{name}.{key}", thing)


def test_every_page_is_in_a_group_of_the_index_once():
    """A new page needs one line: a link in docs/index.md, under the task that it is for."""
    linked = re.findall(r"^- \[.+?\]\(([\w./-]+\.md)\): ", INDEX, re.MULTILINE)
    missing = {path.name for path in PAGES} - {"index.md", *linked}

    assert not missing, f"no group of docs/index.md has a line for {', '.join(sorted(missing))}"
    assert len(linked) == len({*linked})


def test_every_notebook_is_linked_from_a_page():
    """Notebooks are not shown on the site: their links are for downloading them."""
    text = "".join(page.read_text() for page in PAGES)

    for notebook in ROOT.glob("docs/examples/*.ipynb"):
        assert f"](examples/{notebook.name})" in text, f"no page of docs/ links to {notebook.name}"


def test_every_public_name_is_in_the_reference(site: Path):
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    described = {name for kind, names in inventory.items() if kind[:3] == "py:" for name in names}
    names = {name for name, _, _ in public()}

    assert {"rrcm.smooth", "rrcm.losses.info_nce", "rrcm.stopping.grid.Rule"} < names
    assert names - described == set()


def test_every_public_piece_names_its_theorem_or_paper():
    """In its own docstring or in that of its module, which the reference shows above it."""
    for name, module, thing in public():
        if module and not inspect.ismodule(thing) and name != "rrcm.noise.streams.torch_seed":
            main = [vars(module).get(key) for key in ("certify", "Rule")]
            texts = [one.__doc__ for one in (module, thing, *main) if one]

            assert SOURCE.search(" ".join(" ".join(texts).split())), name


def test_equations_are_set_numbered_and_found_by_the_search(site: Path):
    page = html.unescape((site / "docs/theory.html").read_text())
    shown = re.findall(r'<div class="math[^"]*">(.*?)</div>', page, re.DOTALL)
    tags = re.findall(r"\\tag\{(\w+)\}", THEORY)
    index = (site / "searchindex.js").read_text().removeprefix("Search.setIndex(")
    titles = json.loads(index.removesuffix(")"))["alltitles"]

    assert len(tags) > 50
    assert re.findall(r"\\tag\{(\w+)\}", "".join(shown)) == tags
    assert "$$" not in re.sub(r"<[^>]+>", "", page)
    for heading in re.findall(r"^### (Eq\. .*)$", THEORY, re.MULTILINE):
        assert heading.replace("'", "’") in titles


def test_the_page_of_all_logs_is_whole_in_one_file(site: Path):
    text = (site / "docs/ledger.html").read_text()
    data = json.loads(re.search(r'id="ledger">(.*?)</script>', text, re.DOTALL)[1])

    assert len(data["rows"]) > 2_000 and "r=" in text
    assert not re.search(r"(src|href)=\"(https?:|//|\.\./)|url\(", text)


def test_an_equation_that_a_docstring_cites_is_a_link(site: Path):
    page = (site / "docs/api.html").read_text()
    links = dict(re.findall(r'href="theory\.html#([^"]+)">(eq\. \w+)</a>', page))

    assert links["eq-12-cohens-radius"] == "eq. 12" and len(links) > 12
    assert not re.search(r"\(theory\.md,\s+eq", page)
