"""What is said to be there is there.

Pages, docstrings and messages are searched for commands, options, environment variables, files and
Python names, and each is looked up in the program.
"""

import ast
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pandas as pd
import typer
from builders import understood
from typer.testing import CliRunner
from workspace import ROOT, Workspace, shell, tracked

from benchmarks.published import claimed
from rrcm.cli import main as cli

PROGRAM = typer.main.get_command(cli.app)
PAGES = tracked("*.md", "docs/*.md", "deploy/**/*.md", "benchmarks/*.md")
CODE = [p for folder in ("rrcm", "pipeline", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
SETTINGS = tracked("deploy/**", "presets/*.yaml", ".ci/*", ".github/**")
SETTINGS += [ROOT / name for name in ("Makefile", "dvc.yaml", "pyproject.toml")]
GONE = {  # as pages say
    *("rrcm certify --prefixes", "rrcm flow run --publish", "rrcm preset --no-force"),
    *("rrcm certify --devices", "rrcm certify --radius R", "rrcm certify --denoiser"),
    *("rrcm merge", "rrcm.smoothed"),
}
ENTRY_POINTS = "rrcm.commands"  # a group of them, and no module
OTHERS = {  # options of DVC, Docker and GTO, which pages name
    *("--allow-missing", "--csv", "--default", "--drop", "--only-changed", "--sort-by"),
    *("--stage", "--user"),
}
READ_ONLY = {"check", "report", "compare", "derive", "audit"}
ROOMS = r"rrcm|pipeline|tests|benchmarks|presets|docs|deploy|release|\.ci|\.github"
FILE = re.compile(rf"(?<![\w./{{}}-])(?:{ROOMS})/[\w./-]*[\w/](?![\w{{}}*<-])")
NAME = re.compile(r"(?<![\w./@-])rrcm(?:\.[A-Za-z_]\w*)+(?![\w/-])")
VARIABLE = re.compile(r"\bRRCM_[A-Z_]*[A-Z]\b")


def strings(path: Path) -> Iterator[str]:
    """Docstrings, messages and whatever else a module has between quotes; {} for a value."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    for node in joined:
        yield "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


@cache
def texts() -> dict[str, str]:
    """What is said, by file; tables of what was before lose their first column."""
    found = {path: "\n".join(strings(path)) for path in CODE}
    for path in PAGES:
        tables = re.split(r"(^ *\| before \|.*\n(?: *\|.*\n)*)", path.read_text(), flags=re.M)
        tables[1::2] = [re.sub(r"^ *\|[^|]*", "", table, flags=re.M) for table in tables[1::2]]
        found[path] = "".join(tables)
    return {path.relative_to(ROOT).as_posix(): text for path, text in found.items()}


def inline(text: str) -> Iterator[str]:
    """What stands between backquotes."""
    plain = re.sub(r"```.*?```", "", text, flags=re.S)
    yield from (" ".join(code.split()) for code in re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", plain))


def spelled(command: click.Command) -> set[str]:
    return {"-h", "--help"} | {o for p in command.params for o in (*p.opts, *p.secondary_opts)}


def leaves(command: click.Command) -> Iterator[click.Command]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from leaves(inner)


def unknown(command: str) -> str | None:
    """The word of ``rrcm …`` that is neither a command nor an option of it, if there is one."""
    try:
        words = shlex.split(command)[1:]
    except ValueError:  # an apostrophe in a sentence
        words = command.split()[1:]
    node = PROGRAM
    while words and hasattr(node, "commands") and re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
        if words[0] not in node.commands:
            return words[0]
        node = node.commands[words.pop(0)]
    if node.name == "repro":  # it takes those of DVC
        return None
    given = (word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word))
    return next((word for word in given if word not in spelled(node)), None)


def test_commands_that_are_named_are_commands_with_these_options():
    named = {
        (path, code)
        for path, text in texts().items()
        for code in (*map(shlex.join, shell(text)), *inline(text))
        if code.startswith("rrcm ") and code not in GONE
    }

    assert len(named) > 150
    assert [one for one in sorted(named) if unknown(one[1])] == []
    assert all(unknown(command) for command in GONE if " " in command)


def test_the_list_of_commands_fits_a_screen():
    help = PROGRAM.get_help(click.Context(PROGRAM, info_name="rrcm", terminal_width=80))

    assert len(help.splitlines()) <= 40


def test_options_that_are_named_alone_are_of_some_program():
    gone = {word for command in GONE for word in command.split() if word.startswith("--")}
    known = OTHERS.union(gone, *map(spelled, leaves(PROGRAM)))
    for path in (*CODE, ROOT / ".ci/audit.py"):
        known.update(re.findall(r"add_argument\(\s*\"(--[\w-]+)", path.read_text()))

    named = {
        (path, code.split()[0].partition("=")[0])
        for path, text in texts().items()
        for code in inline(text)
        if re.match(r"--[a-z]", code)
    }
    assert [one for one in sorted(named) if one[1] not in known] == []


def test_commands_of_pages_are_understood(finished: Workspace, monkeypatch):
    """Also the values of their options, and the target of `make`."""
    monkeypatch.chdir(finished.path)  # files that a command names must be there
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M)
    for command in (command for page in PAGES for command in shell(page.read_text())):
        program, *words = command
        if program == "rrcm":
            understood(words)
        if program == "make":
            assert {*words} - {word for word in words if "=" in word} <= {*targets}, command
        if program == "python" and words[0] == "-m":
            assert importlib.util.find_spec(words[1]), command


def test_what_only_reads_runs_as_the_pages_have_it(checkout: Workspace, monkeypatch):
    """On the miniature, where it has the files that a command names."""
    monkeypatch.chdir(checkout.path)
    run = {
        tuple(words)
        for page in PAGES
        for program, *words in shell(page.read_text())
        if program == "rrcm" and (words[0] in READ_ONLY or words == ["log", "tensorboard"])
        if all(Path(word).exists() for word in words if re.search(r"\.[a-z]+$", word))
        if not {"--n", "--only"} & {*words}  # more than the miniature has
    }

    assert {words[0] for words in run} == READ_ONLY | {"log"}
    for words in sorted(run):
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 0 and result.output.strip(), (words, result.exception)


def test_environment_variables_are_read_in_one_place_and_listed():
    product = [path for path in CODE if path.relative_to(ROOT).parts[0] != "benchmarks"]
    places = [text for path in product for text in strings(path) if VARIABLE.fullmatch(text)]
    listed = (ROOT / "docs/deployment.md").read_text().split("The program itself reads these:")[1]

    assert sorted(places) == sorted({*places}) == sorted(VARIABLE.findall(listed.split("\n## ")[0]))


def test_environment_variables_that_are_named_are_read():
    read = {text for path in CODE for text in strings(path) if VARIABLE.fullmatch(text)}
    for path in SETTINGS:
        read.update(re.findall(r"\$\{?(RRCM_[A-Z_]+)", path.read_text()))

    named = {(path, name) for path, text in texts().items() for name in VARIABLE.findall(text)}
    assert len(named) > 10
    assert [one for one in sorted(named) if one[1] not in read] == []


def test_files_that_are_named_exist():
    """In comments and settings, too."""
    whole = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (*CODE, *SETTINGS)}
    named = {
        (path, file.rstrip("./"))
        for path, text in (*texts().items(), *whole.items())
        for file in FILE.findall(text)
    }

    assert len(named) > 100
    assert [one for one in sorted(named) if not (ROOT / one[1]).exists()] == []


def test_tests_that_ci_names_exist():
    """pytest runs none of the others either when one of them does not."""
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", (ROOT / ".ci/run").read_text())

    assert named and all(f"\ndef {name}(" in (ROOT / file).read_text() for file, name in named)


def test_links_lead_somewhere():
    for page in PAGES:
        targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        lost = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
        assert not lost, page


def test_published_tables_are_as_many_as_is_said():
    logs = pd.read_csv(ROOT / "presets/field/logs.csv")
    cohen = logs[logs["source"] == "Cohen 2019"]
    total, lax = len(cohen), (cohen["alpha"] == 0.01).sum()
    strict, untold = (cohen["alpha"] == 0.001).sum(), cohen["alpha"].isna().sum()

    page = " ".join((ROOT / "docs/auditing.md").read_text().split())
    assert f"has the {len(logs)} logs" in page and f"All {len(logs) - total} of Sun et al." in page
    assert f"Of the {total} logs of Cohen et al., {lax} are of α = 0.01" in page
    assert f"{strict} are of 0.001, and {untold} cannot be checked" in page
    assert claimed(logs) in page
    readme = (ROOT / "README.md").read_text()
    assert f"{lax} of the {total} tables that Cohen et al. released have α = 0.01" in readme
    assert f"{len(logs)} released logs at one α" in readme


def test_python_names_that_are_named_can_be_imported():
    named = {
        (path, name)
        for path, text in texts().items()
        for name in NAME.findall(text)
        if not name.endswith((".digest", ".stage", ".said"))  # keys that look like it
        if name not in {*GONE, ENTRY_POINTS}
    }

    assert len(named) > 40
    assert [one for one in sorted(named) if not importable(one[1])] == []


@cache
def importable(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ModuleNotFoundError, AttributeError):
        return False
    return True
