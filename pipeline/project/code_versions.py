"""Versions of the code of a stage: found in git by their hashes in dvc.lock, and compared.

Two versions are the same code if each file that both have has the same syntax tree, and imports
none of this project that only one of them has. Comments, docstrings, and annotations of undecorated
functions and of their variables do not count. Files that are not Python must have the same bytes.

Guarantee: with the same inputs, parameters, packages and machine, both versions compute the same
result. Not compared are code that dvc.yaml does not list for the stage, and lines and paths of code
where they are only shown (a traceback, the metadata of an ONNX file).
"""

import ast
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.workflow import git
from pipeline.workflow.dvc_lock import tree as tree_hash
from rrcm.core.errors import StageError


def compare(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> str | None:
    """The first difference of two versions, a line for the place in each; None if there is none.

    Args:
        old: Contents by path of the files that the stage ran on.
        new: Those that it would run on now.

    Raises:
        StageError: A file of Python cannot be parsed.
    """
    for path in sorted(old.keys() | new.keys()):
        if path.endswith(".py") and path in old and path in new:
            before, now = _tree(path, old[path]), _tree(path, new[path])
            if ast.dump(before) != ast.dump(now):
                return _first(path, before, now)
            for file in sorted(_imported(now)):
                if (file in old) != (file in new):
                    return _presence(file, old, new)
        elif not path.endswith(".py") and old.get(path) != new.get(path):
            return _presence(path, old, new)
    return None


def _presence(path: str, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> str:
    states = [f"{path}: {'' if path in files else 'not '}there" for files in (old, new)]
    return _lines(*states)


def _lines(old: str, new: str) -> str:
    return f"  - {old}\n  + {new}"


def _tree(path: str, text: bytes) -> ast.AST:
    try:
        return _Bare().visit(ast.parse(text))
    except SyntaxError as error:
        raise StageError(f"{path}: no valid Python: {error}") from None


def _imported(tree: ast.AST) -> set[str]:
    """The files, in this project, that the imports of a file may mean."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = [name.replace(".", "/") for name in names]
    return {f"{path}{ending}" for path in paths for ending in (".py", "/__init__.py")}


class _Bare(ast.NodeTransformer):
    """Removes docstrings, and annotations of undecorated functions."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._body(node)

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
        return self._body(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _body(self, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> ast.AST:
        match node.body:
            case [ast.Expr(ast.Constant(str())), *rest]:
                node.body = rest
        return self.generic_visit(node)


def _first(path: str, old: ast.AST, new: ast.AST) -> str:
    """The first statement, the innermost, at which two trees of a file differ."""
    while pair := _inside(old, new):
        old, new = pair
    return _lines(_place(path, old), _place(path, new))


def _inside(old: ast.AST, new: ast.AST) -> tuple[ast.AST, ast.AST] | None:
    """The first two statements that differ in the bodies of two that do."""
    bodies = getattr(old, "body", None), getattr(new, "body", None)
    if not all(isinstance(body, list) for body in bodies):
        return None
    pairs = zip(*bodies, strict=False)
    return next(((one, other) for one, other in pairs if ast.dump(one) != ast.dump(other)), None)


def _place(path: str, node: ast.AST) -> str:
    """Such as ``rrcm/core/files.py:12: MOST = 2**26``."""
    if isinstance(node, ast.Module):
        return f"{path}: ends otherwise"
    return f"{path}:{getattr(node, 'lineno', 0)}: {ast.unparse(node).splitlines()[0]}"


class History:
    """Reads versions of the code from git, each once."""

    def __init__(self, blobs: git.Blobs) -> None:
        """Use the repository of the current folder."""
        self._blobs = blobs
        self._files: dict[str, dict[str, str]] = {}
        self._hashes: dict[str, str] = {}

    def find(self, recorded: Mapping[str, str]) -> dict[str, bytes]:
        """The contents, by path, of the files and folders that have their recorded hashes.

        Each is taken from the newest commit that has it.

        Args:
            recorded: DVC's hash of each file or folder of code that a stage ran on.

        Raises:
            StageError: Some of them were never committed, or this is no git repository.
        """
        files: dict[str, bytes] = {}
        missing = {*recorded}
        for commit in _commits([*recorded]):
            for path in sorted(missing):
                if self._hash(commit, path) == recorded[path]:
                    blobs = self._inside(commit, path)
                    files |= {name: self._blobs[blob] for name, blob in blobs.items()}
                    missing.remove(path)
            if not missing:
                return files
        more = f", nor of {len(missing) - 1} more" if len(missing) > 1 else ""
        raise StageError(f"{min(missing)}: git has no commit with the version that it ran on{more}")

    def _inside(self, commit: str, path: str) -> dict[str, str]:
        """The blobs, by path, of a file or of the files in a folder; none if there is neither."""
        return {name: blob for name, blob in self._listing(commit).items() if _is_in(name, [path])}

    def _hash(self, commit: str, path: str) -> str:
        """DVC's hash of a file or folder in a commit; empty if the commit lacks it."""
        blobs = self._inside(commit, path)
        if path in blobs:
            return self._md5(blobs[path])
        hashes = {name[len(path) + 1 :]: self._md5(blob) for name, blob in blobs.items()}
        return tree_hash(hashes) if hashes else ""

    def _md5(self, blob: str) -> str:
        if blob not in self._hashes:
            self._hashes[blob] = hashlib.md5(self._blobs[blob]).hexdigest()
        return self._hashes[blob]

    def _listing(self, commit: str) -> dict[str, str]:
        """The blob of each file of a commit."""
        if commit not in self._files:
            rows = git.run("ls-tree", "-r", "-z", commit).split("\0")
            split = (row.split("\t", 1) for row in rows if row)
            blobs = {path: about.split()[2] for about, path in split if about.split()[1] == "blob"}
            self._files[commit] = blobs
        return self._files[commit]


def here(paths: Collection[str]) -> dict[str, bytes]:
    """The contents, by path, of files and folders of this checkout, committed or not."""
    names = git.run("ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    inside = [name for name in names if _is_in(name, paths) and Path(name).is_file()]
    return {name: Path(name).read_bytes() for name in inside}


def _commits(paths: Sequence[str]) -> Iterator[str]:
    """Commits that may contain the files, newest first: HEAD, and those that changed a file."""
    yield git.run("rev-parse", "HEAD")
    for commit in git.run("log", "--format=%H", "HEAD", "--", *paths).split():
        yield commit
        yield from (git.attempt("rev-parse", f"{commit}^@") or "").split()  # before a deletion


def _is_in(path: str, folders: Collection[str]) -> bool:
    return path in folders or any(path.startswith(f"{folder}/") for folder in folders)
