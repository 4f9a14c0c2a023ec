"""What is said is so: of the presets, and of what there is.

Pages, docstrings and messages are searched for commands, options, environment variables, files and
Python names, and each is looked up in the program.
"""

import ast
import importlib
import itertools
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner
from workspace import ROOT, Workspace, tracked

from pipeline.project import presets
from rrcm.cli import main as cli
from rrcm.config import params

PRESETS = [path.stem for path in tracked("presets/*.yaml")]
PAPER = [name for name in PRESETS if not name.startswith(("digits", "fashion"))]
RULES = ("grid", "spending", "anytime")


@cache
def preset(name):
    return params.load(ROOT / f"presets/{name}.yaml")


@cache
def document(name):
    """Its text, every run of blanks and line ends as one blank."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def pretrainings(names, objective):
    return [cfg for n in names for cfg in preset(n).pretrain.values() if cfg.objective == objective]


def test_the_curriculum_of_each_preset():
    said = re.search(
        r"The presets of the paper's experiments \(.*?\) use `(\w+)`, "
        r"ours of smaller images `(\w+)`",
        document("theory.md"),
    )

    for names, rule in zip((PAPER, {*PRESETS} - {*PAPER}), said.groups(), strict=True):
        assert {cfg.grid.rule for cfg in pretrainings(names, "rrcm")} == {rule}


def test_lambda_of_the_digits_and_of_the_paper():
    text = document("theory.md")
    paper = re.search(r"\$\\lambda = (\d+)\$ at \$\\sigma = 0\.25\$ or (\d+) above", text)
    others = re.search(r"`digits-diffusion` have (\d+) and (\d+), and `digits` has (\d+)", text)
    ours = {"digits": (others[3], others[3])}
    ours |= dict.fromkeys(("digits-all", "digits-diffusion"), others.groups()[:2])

    for names, said in ((PAPER, paper.groups()), *(([name], said) for name, said in ours.items())):
        runs = [r for n in names for r in preset(n).runs.values() if r.method == "rrcm"]
        found = {(r.loss["lbd"], r.sigma > 0.25) for r in runs}
        assert found == {(float(said[0]), False), (float(said[1]), True)}


def test_how_pairs_are_drawn_and_that_terms_weigh_the_same():
    found = pretrainings(PRESETS, "rrcm")

    drawn = {(c.grid.mean, c.grid.std) for c in found if c.grid.sampling == "lognormal"}
    assert {cfg.loss["consistency"] for cfg in found} == {1.0}
    text = document("theory.md")
    said = re.search(
        r"so do our presets but `(\S+)`, "
        r"whose \$\\ln t\$ has mean (\S+) and standard deviation (\S+)\.",
        text,
    )
    ours = pretrainings([said[1]], "rrcm")
    assert drawn == {(float(said[2]), float(said[3]))}
    assert {c.grid.sampling for c in ours} == {"lognormal"}
    assert sum(c.grid.sampling == "lognormal" for c in found) == len(ours)
    assert "our presets set $w = 1$" in text


def test_contrast_alone_can_be_compared_at_an_equal_batch(tmp_path, monkeypatch):
    """With the run that recipes.md names, of the preset that it names."""
    monkeypatch.chdir(ROOT)
    said = re.search(
        r"\*\*equal batches of (\d+)\*\*; `(\S+)` has batches of (\d+)\. "
        r"Compare `(\S+)` with `(\S+)`, which `rrcm preset (\S+) --base (\S+)` adds",
        document("recipes.md"),
    )
    equal, ours, larger, contrast, other, ablation, base = said.groups()
    made = tmp_path / "params.yaml"
    made.write_text(presets.composed(ablation, base))

    def batch(whole, run):
        return whole.pretrain[whole.runs[run].start.removeprefix("pretrained/")].batch_size

    assert batch(preset(base), contrast) == batch(params.load(made), other) == int(equal)
    assert batch(preset(base), ours) == int(larger)


def test_the_classifier_behind_diffsmooth():
    """Trained with the noise of the copies, whatever sigma is certified."""
    found = [
        (whole.runs[entry.run].sigma, entry.local.sigma)
        for whole in map(preset, PRESETS)
        for entry in whole.purified.values()
        if entry.method.startswith("diffsmooth")
    ]

    assert {*found} == {(0.25, 0.25)}
    assert "trained with noise of `local.sigma`, 0.25, at every sigma" in document("purifiers.md")


@pytest.mark.parametrize("rule", RULES)
def test_beta_of_each_rule(rule):
    """The table of certifying.md has a column for it."""
    line = re.search(rf"^\| `{rule}` \|.*$", (ROOT / "docs/certifying.md").read_text(), re.M)[0]
    said = {float(value) for value in re.findall(r"\d[\d.e-]*", line.split("|")[-2])}

    assert said == {preset(name).stopping[rule]["beta"] for name in PRESETS}


# What there is.

PROGRAM = typer.main.get_command(cli.app)
PAGES = tracked("*.md", "docs/*.md", "deploy/**/*.md", "benchmarks/*.md")
CODE = [p for folder in ("rrcm", "pipeline", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
SETTINGS = tracked("deploy/**", "presets/*.yaml", ".ci/*", ".github/**")
SETTINGS += [ROOT / name for name in ("Makefile", "dvc.yaml", "pyproject.toml")]
GONE = {  # as pages say
    *("rrcm certify --prefixes", "rrcm flow run --publish", "rrcm preset --no-force"),
    "rrcm.smoothed",
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


def shell(text: str) -> Iterator[list[str]]:
    """The commands of a page's console blocks, as words."""
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
                words.whitespace_split = True
                for more, command in itertools.groupby(words, lambda word: not {*word} <= {*"&|;"}):
                    if more:
                        yield [*command]


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


def test_options_that_are_named_alone_are_of_some_program():
    known = OTHERS.union(*map(spelled, leaves(PROGRAM)))
    for path in (*CODE, ROOT / ".ci/audit.py"):
        known.update(re.findall(r"add_argument\(\s*\"(--[\w-]+)", path.read_text()))

    named = {
        (path, code.split()[0].partition("=")[0])
        for path, text in texts().items()
        for code in inline(text)
        if re.match(r"--[a-z]", code)
    }
    assert [one for one in sorted(named) if one[1] not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_of_a_page_are_understood(page: Path, finished: Workspace, monkeypatch):
    """Also the values of their options, and the target of `make`."""
    monkeypatch.chdir(finished.path)  # files that a command names must be there
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M)
    for command in shell(page.read_text()):
        program, *words = command
        if program == "rrcm":
            understood(PROGRAM, "rrcm", words)
        if program == "make":
            assert {*words} - {word for word in words if "=" in word} <= {*targets}, command
        if program == "python" and words[0] == "-m":
            assert importlib.util.find_spec(words[1]), command


def understood(node: click.Command, name: str, words: list[str], parent=None) -> None:
    with node.make_context(name, [*words], parent=parent) as context:
        context.obj = Path.cwd()  # where relative paths are from
        if hasattr(node, "commands"):
            left = [*context._protected_args, *context.args]
            name, inner, words = node.resolve_command(context, left)
            understood(inner, name, words, context)


def test_what_only_reads_runs_as_the_pages_have_it(checkout: Workspace, monkeypatch):
    """On the miniature, where it has the files that a command names."""
    monkeypatch.chdir(checkout.path)
    run = {
        tuple(words)
        for page in PAGES
        for program, *words in shell(page.read_text())
        if program == "rrcm" and (words[0] in READ_ONLY or words == ["log", "tensorboard"])
        if all(Path(word).exists() for word in words if re.search(r"\.[a-z]+$", word))
        if "--n" not in words  # more than the miniature has
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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())

    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


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
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return bool(module) and importable(module) and hasattr(resolved(module), attribute)
    return True


def resolved(name: str):
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return getattr(resolved(module), attribute)
