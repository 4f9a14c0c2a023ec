"""What the code of stages and components means: digests, in git, on which DVC's stages depend.

``code/stages/train.json`` and ``code/components/methods/gaussian.json`` have a line for each file
in the closure of imports. Of Python it is a digest of the syntax tree without comments, docstrings,
positions, and annotations of undecorated functions and of their variables; of another file, that
the code names by a string, a digest of its bytes.

Guarantee: with the same files in ``code/``, inputs, parameters, packages and machine, a stage
computes the same result. Not compared are lines and paths of code where they are only shown.
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rrcm.core import registry
from rrcm.core.errors import StageError
from rrcm.core.files import write_text

FOLDER = Path("code")
COMPONENTS = FOLDER / "components"
STAGE_FILE = FOLDER / "dvc.yaml"
STAGE = f"{STAGE_FILE}:code"  # DVC's name of the stage that writes it
SCRIPTS = Path("pipeline/stages")
# Not followed, as they can refuse a result but not change it: the check of all of params.yaml,
# whose imports are all components, and this file, whose edit would show in the digests themselves.
# Nor is rrcm/__init__.py, which only names what is public and makes torchvision importable.
REFUSE = {"pipeline/checked.py", "pipeline/runtime/code.py"}
UNSAID = {"ctx", "kind", "type_comment"}  # fields that follow from others, or say nothing
NAME = re.compile(r"[\w.-]+")


def entries() -> dict[str, Path]:
    """The script of each stage and the module of each component, by its file below ``code/``."""
    scripts = (path for path in SCRIPTS.glob("[a-z]*.py") if path.stem != FOLDER.name)
    paths = {f"stages/{path.stem}": path for path in scripts}
    for kind, folder in registry.FOLDERS.items():
        modules = Path("rrcm", folder).glob("[a-z]*.py")
        paths |= {f"components/{kind}/{path.stem}": path for path in modules}
    return {f"{FOLDER}/{name}.json": path for name, path in sorted(paths.items())}


def texts(path: str = str(FOLDER)) -> dict[str, str]:
    """What a file, or those in a folder, in ``code/`` should have now; nothing for other paths.

    Raises:
        StageError: A file of the code is no valid Python.
    """
    if not f"{path}/".startswith(f"{FOLDER}/"):
        return {}
    mine = {name: at for name, at in entries().items() if f"{name}/".startswith(f"{path}/")}
    return {name: closure(at) for name, at in mine.items()}


def require_current(path: str) -> None:
    """Refuse code that was edited since what it means was written to ``path``, a file or folder.

    Raises:
        StageError: The files below ``path`` are not those of the code here.
    """
    for name, text in texts(path).items():
        if not Path(name).is_file() or Path(name).read_text(encoding="utf-8") != text:
            raise StageError(
                f"{name}: the code has changed since; `dvc repro {STAGE}` writes it anew, for git"
            )


def closure(path: Path) -> str:
    """JSON with the digest of each file that ``path`` imports, directly or not, and its own.

    Raises:
        StageError: One of them is no valid Python.
    """
    digests: dict[str, str] = {}
    left = [path.as_posix()]
    while left:
        if (name := left.pop()) not in digests:
            digests[name], imported = read(name, Path(name).read_bytes())
            left += [file for file in imported if file not in REFUSE and Path(file).is_file()]
    return json.dumps(digests, indent=1, sort_keys=True) + "\n"


def write() -> None:
    """Write what differs, and remove the files of stages and components that are no more."""
    now = texts()
    for name, text in now.items():
        if not (path := Path(name)).is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
    for path in FOLDER.rglob("*.json"):
        if path.as_posix() not in now:
            path.unlink()


def definitions(source: bytes) -> dict[str, str]:
    """The digest of each statement of a module, by the name that it defines or its first line."""
    return {_name(node): _hash("".join(_folded(node))) for node in _tree(source).body}


@cache
def read(name: str, source: bytes) -> tuple[str, frozenset[str]]:
    """The digest of a file, and the paths that its imports and strings may mean."""
    if not name.endswith(".py"):
        return hashlib.sha256(source).hexdigest()[:16], frozenset()
    try:
        tree = _tree(source)
    except SyntaxError as error:
        raise StageError(f"{name}: no valid Python: {error}") from None
    return _hash("".join(_folded(tree))), frozenset(_named(tree, Path(name).parent))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _named(tree: ast.Module, folder: Path) -> Iterator[str]:
    """Modules of this project that are imported, also by a string, and files beside the module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module)):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case ast.Constant(value=str(text)) if NAME.fullmatch(text):
                names = [text, text.rpartition(".")[0]]
                yield (folder / text).as_posix()
            case _:
                continue
        for name in names:
            if name.startswith(("rrcm.", "pipeline.")):
                yield f"{name.replace('.', '/')}.py"


def _folded(node: Any) -> Iterator[str]:
    """A syntax tree as text, the same for every version of Python: what is empty is left out."""
    if isinstance(node, ast.AST):
        yield f"{type(node).__name__}("
        for name in sorted({*node._fields} - UNSAID):
            if (value := getattr(node, name, None)) not in (None, []):
                yield f"{name}="
                yield from _folded(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for each in node:
            yield from _folded(each)
        yield "]"
    else:
        yield f"{node!a} "


def _tree(source: bytes) -> ast.Module:
    return _Bare().visit(ast.parse(source))


class _Bare(ast.NodeTransformer):
    """Removes docstrings, and annotations of undecorated functions."""

    def visit_Module(self, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> ast.AST:
        match node.body:
            case [ast.Expr(ast.Constant(str())), *rest]:
                node.body = rest
        return self.generic_visit(node)

    visit_ClassDef = visit_Module

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if not node.decorator_list:  # a decorator may read them
            node.returns = None
            rest = (node.args.vararg, node.args.kwarg)
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *rest):
                if argument is not None:
                    argument.annotation = None
        for number, statement in enumerate(node.body):
            if isinstance(statement, ast.AnnAssign):
                target, value = statement.target, statement.value
                plain = ast.Assign([target], value) if value else ast.Pass()
                node.body[number] = ast.copy_location(plain, statement)
        return self.visit_Module(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        # Python 3.12 alone ends a format of nothing but a value with an empty text.
        node.values = [v for v in node.values if not (isinstance(v, ast.Constant) and not v.value)]
        return self.generic_visit(node)


def _name(node: ast.stmt) -> str:
    """``draw_votes`` of a function, ``MOST`` of a constant, else the statement's first line."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            return ast.unparse(target)
    return ast.unparse(node).splitlines()[0]
