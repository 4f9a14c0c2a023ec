"""How `make docs` builds the site: the Markdown files of this repository, and the public API.

The folder of the sources is the repository, so that links between its Markdown files are the same
here and on a Git host. Two pages have more on the site than in their file:

- docs/index.md: its links, by heading, are the table of contents;
- docs/api.md: a heading that is a name in Python is followed by the docstrings of that name.

docs/ledger.html is one more, of all rows of presets/field/ledger.csv.gz.
"""

import re
import sys
import tomllib
from functools import cache
from inspect import isclass, ismodule
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

from myst_parser.slugs import github_slugify
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks, which are in no package
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = {"docs", "benchmarks"}  # folders of the repository that have pages
LINK = re.compile(r"^- \[(.+?)\]\(([\w./-]+)\.md\)", re.MULTILINE)
NAME = re.compile(r"^##+ `(rrcm[\w.]*)`$")
CITED = re.compile(r"\((?:(?:docs/)?theory\.md,\s+)?eq\. (\d+)([a-z]?)")
OBJECT = re.compile(r"= (?:<factory>|[A-Z]\w*\([^()]*\))")
CODE_OR_STAR = re.compile(r"`[^`]*`|(?<![*\\])\*(?!\*)")

project = PROJECT["name"]
version = release = PROJECT["version"]
author = copyright = "the authors of rrcm"
language = "en_GB"
root_doc = "docs/index"
include_patterns = ["*.md", *(f"{folder}/*.md" for folder in sorted(PAGES))]
# Folders without pages are not even walked through: some hold an environment, or a data set.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir()]
exclude_patterns = sorted({*exclude_patterns} - PAGES)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as on a Git host: theory.md#eq-7-the-rrcm-loss
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
default_role = "py:obj"  # `name` in a docstring is a link where that name is on the site

html_theme = "furo"
html_title = f"rrcm {release}"
html_additional_pages = {"index": "redirect.html", "docs/ledger": "ledger.html"}
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
# Equations are set in the reader's browser; without a network they are shown as LaTeX.
mathjax_path = "https://cdn.jsdelivr.net/npm/mathjax@3.2.2/es5/tex-mml-chtml.js"
mathjax_options = {
    "integrity": "sha384-Wuix6BuhrWbjDBs24bXrjf4ZQ5aFeFWBuKkFekO2t8xFU0iNaLQfp2K6/1Nxveei",
    "crossorigin": "anonymous",
    "defer": "defer",
}
mathjax3_config = {"chtml": {"scale": 0.9}}


def with_contents(text: str) -> str:
    """The index; the links of each section are also a part of the table of contents."""
    start, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    whole = [start]
    for section in sections:
        heading = section.partition("\n")[0]
        pages = "\n".join(f"{text} </{_page(link)}>" for text, link in LINK.findall(section))
        whole += [
            f"## {section}\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n\n"
        ]
    return "".join(whole)


def _page(link: str) -> str:
    """The page that a link of docs/index.md leads to, from the top of the repository."""
    return (ROOT / "docs" / link).resolve().relative_to(ROOT).as_posix()


def with_docstrings(text: str) -> str:
    """The page of the API; below a heading that is a name, what is behind the name."""
    whole: list[str] = []
    name = None
    for line in text.splitlines():
        if line.startswith("#"):
            whole += described(name) if name else []
            name = found[1] if (found := NAME.match(line)) else None
        whole.append(line)
    return "\n".join([*whole, *(described(name) if name else [])])


def described(name: str) -> list[str]:
    """The directives that document a public name: with its members, if it is a module."""
    thing = resolve_name(name)
    if not ismodule(thing):
        return [_directive("class" if isclass(thing) else "function", name)]
    whole = [_directive("module", name)]
    if hasattr(thing, "__path__"):
        for module in modules_of(thing):
            whole += [f"\n### `{name}.{module}`\n", *described(f"{name}.{module}")]
    for member in public(thing):
        whole += described(f"{name}.{member}")
    return whole


def modules_of(package: ModuleType) -> list[str]:
    """The names of the modules in a package."""
    return sorted(p.stem for p in Path(package.__path__[0]).glob("*.py") if p.stem[0] != "_")


def public(module: ModuleType) -> list[str]:
    """The functions and classes that a module defines, in the order of its file."""
    own = [name for name, thing in vars(module).items() if _is_of(module, name, thing)]
    return getattr(module, "__all__", own)


def _is_of(module: ModuleType, name: str, thing: object) -> bool:
    here = getattr(thing, "__module__", None) == module.__name__
    return here and callable(thing) and name[0] != "_"


def _directive(kind: str, name: str) -> str:
    options = "   :members:\n" if kind == "class" else ""
    return f"\n```{{eval-rst}}\n.. auto{kind}:: {name}\n{options}```\n"


def written_for_the_site(
    app: Sphinx, kind: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Change a docstring in place: equations are links, guarantees stand out, a star is a star."""
    text = CODE_OR_STAR.sub(lambda it: r"\*" if it[0] == "*" else it[0], "\n".join(lines))
    text = CITED.sub(_linked, text)
    lines[:] = re.sub(r"^Guarantee:", "**Guarantee:**", text, flags=re.MULTILINE).splitlines()


def _linked(citation: re.Match[str]) -> str:
    number, letter = citation.groups()
    return f"(`eq. {number}{letter} <theory.html#{equations()[number]}>`__"


def shortened(
    app: Sphinx,
    kind: str,
    name: str,
    thing: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """The signature with ``...`` for a default that is an object: its own text is not Python."""
    return signature and OBJECT.sub("= ...", signature), returned


@cache
def equations() -> dict[str, str]:
    """The number of an equation -> the anchor of the section of docs/theory.md that has it."""
    found = {}
    _, *sections = re.split(r"^###? ", (ROOT / "docs/theory.md").read_text(), flags=re.MULTILINE)
    for section in sections:
        anchor = github_slugify(section.partition("\n")[0])
        found |= dict.fromkeys(re.findall(r"\\tag\{(\d+)", section), anchor)
    return found


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Add what the two pages have on the site alone."""
    change = {"docs/index": with_contents, "docs/api": with_docstrings}.get(page)
    if change:
        source[0] = change(source[0])


def with_ledger(
    app: Sphinx, page: str, template: str, context: dict[str, object], tree: object
) -> None:
    """Give the page of the ledger its rows."""
    if page == "docs/ledger":
        context["ledger"] = resolve_name("benchmarks.field.page:browsed")(ROOT / "presets/field")


def setup(app: Sphinx) -> None:
    """Connect the functions above to the build."""
    app.connect("source-read", read)
    app.connect("html-page-context", with_ledger)
    app.connect("autodoc-process-signature", shortened)
    app.connect("autodoc-process-docstring", written_for_the_site, priority=400)  # before napoleon
