"""Versions of the code of a stage: found in git by their hashes in dvc.lock, and compared.

Two versions are the same code if their files can be paired, by path or, where a file was moved, by
what it contains, so that each pair has the same syntax tree. Comments, docstrings, annotations of
undecorated functions and of their variables do not count; nor does the path of a file that was
moved, if the imports of all others follow it; nor the order of imports of this project. A file
without a counterpart must not be imported by another one. Files that are not Python must have the
same bytes.

Guarantee: with the same inputs, parameters, packages and machine, both versions compute the same
result. Not compared are code that dvc.yaml does not list for the stage, and lines and paths of code
where they are only shown (a traceback, the metadata of an ONNX file).
"""

import ast
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipeline.workflow import git
from pipeline.workflow.dvc_lock import tree as tree_hash
from rrcm.core.errors import StageError

PROJECT = ("rrcm", "pipeline")  # packages whose modules may move


@dataclass(frozen=True, slots=True)
class Place:
    """A statement of a version of the code."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """Such as ``rrcm/core/files.py:12: MOST = 2**26``."""
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two versions differ."""

    old: Place
    new: Place


def compare(
    old: Mapping[str, bytes], new: Mapping[str, bytes]
) -> tuple[Difference | None, list[tuple[str, str]]]:
    """The first difference of two versions, if any, and the pairs of files that were compared.

    Args:
        old: Contents by path of the files that the stage ran on.
        new: Those that it would run on now.

    Raises:
        StageError: A file of Python cannot be parsed.
    """
    before, now = _trees(old), _trees(new)
    moved = _moved(before, now)
    pairs = [(path, moved.get(path, path)) for path in sorted(old)]
    modules = {_module(a): _module(b) for a, b in moved.items() if a.endswith(".py")}
    alone = {a for a, b in pairs if b not in new} | (new.keys() - {b for _, b in pairs})
    for a, b in pairs:
        if a in alone:
            continue
        if a in before and b in now:
            difference = _first(a, _followed(before[a], modules), b, _followed(now[b], {}))
        else:
            same = old[a] == new[b]
            difference = None if same else _places(a, 0, "was other bytes", b, 0, "is other bytes")
        if difference:
            return difference, []
    for trees, missing in ((before, "is gone"), (now, "is new")):
        imported = {name for path in trees for name in _imports(trees[path])}
        for path in sorted(alone & trees.keys()):
            if trees[path].body and imported & {_module(path)}:
                return _places(path, 0, "is imported", path, 0, missing), []
    for path in sorted(alone - before.keys() - now.keys()):
        return _places(path, 0, "is not Python", path, 0, "is new or gone"), []
    return None, [(a, b) for a, b in pairs if a not in alone]


def _places(a: str, line: int, text: str, b: str, other_line: int, other: str) -> Difference:
    return Difference(Place(a, line, text), Place(b, other_line, other))


def _trees(files: Mapping[str, bytes]) -> dict[str, ast.Module]:
    """The syntax trees of the files of Python, without what does not count."""
    trees = {}
    for path, text in files.items():
        if path.endswith(".py"):
            try:
                trees[path] = _Bare().visit(ast.parse(text))
            except SyntaxError as error:
                raise StageError(f"{path}: no valid Python: {error}") from None
    return trees


class _Bare(ast.NodeTransformer):
    """Removes docstrings, annotations of undecorated functions, and ways of writing an import."""

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

    def visit_Import(self, node: ast.Import) -> list[ast.AST]:
        return [ast.copy_location(ast.Import([alias]), node) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.AST]:
        """One statement for each name, with the name that it is bound to."""
        aliases = [ast.alias(alias.name, alias.asname or alias.name) for alias in node.names]
        return [
            ast.copy_location(ast.ImportFrom(node.module, [alias], node.level), node)
            for alias in aliases
        ]

    def _body(self, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> ast.AST:
        match node.body:
            case [ast.Expr(ast.Constant(str())), *rest]:
                node.body = rest
        return self.generic_visit(node)


def _moved(before: Mapping[str, ast.Module], now: Mapping[str, ast.Module]) -> dict[str, str]:
    """The new path of each file that is only in the old version, if a new file has its contents."""
    found: dict[str, str] = {}
    gone = {path: _definitions(before[path]) for path in sorted(before.keys() - now.keys())}
    come = {path: _definitions(now[path]) for path in sorted(now.keys() - before.keys())}
    for old, definitions in gone.items():
        free = [new for new in come if new not in found.values() and come[new] == definitions]
        alike = [new for new in free if PurePosixPath(new).name == PurePosixPath(old).name]
        if before[old].body and free:
            found[old] = (alike or free)[0]
    return found


def _definitions(tree: ast.Module) -> str:
    """A module but for its imports of this project, which may have moved."""
    return "\n".join(ast.dump(node) for node in tree.body if not _is_own(node))


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PROJECT


def _followed(tree: ast.Module, modules: Mapping[str, str]) -> ast.Module:
    """A module whose imports follow the moves of ``modules``, those of this project sorted."""

    class Follow(ast.NodeTransformer):
        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
            (alias,) = node.names
            module, name = node.module or "", alias.name
            if whole := modules.get(f"{module}.{name}"):
                module, _, name = whole.rpartition(".")
            renamed = ast.alias(name, alias.asname)
            return ast.copy_location(
                ast.ImportFrom(modules.get(module, module), [renamed], node.level), node
            )

    followed = Follow().visit(tree)
    for node in ast.walk(followed):
        if isinstance(body := getattr(node, "body", None), list):
            own = sorted((each for each in body if _is_own(each)), key=ast.dump)
            body[:] = [own.pop(0) if _is_own(each) else each for each in body]
    return followed


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield f"{node.module}.{node.names[0].name}"
        elif isinstance(node, ast.Import):
            yield node.names[0].name


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _first(a: str, old: ast.AST, b: str, new: ast.AST) -> Difference | None:
    """The first statement, the innermost, at which two trees differ."""
    if ast.dump(old) == ast.dump(new):
        return None
    bodies = getattr(old, "body", None), getattr(new, "body", None)
    if all(isinstance(body, list) for body in bodies):
        for one, other in zip(*bodies, strict=False):
            if difference := _first(a, one, b, other):
                return difference
    return Difference(_place(a, old), _place(b, new))


def _place(path: str, node: ast.AST) -> Place:
    text = "ends otherwise" if isinstance(node, ast.Module) else ast.unparse(node).splitlines()[0]
    return Place(path, getattr(node, "lineno", 0), text)


class History:
    """Reads versions of the code from git, each once. A context manager of a git process."""

    def __init__(self) -> None:
        """Use the repository of the current folder."""
        self._blobs = git.Blobs()
        self._files: dict[str, dict[str, str]] = {}
        self._hashes: dict[str, str] = {}

    def __enter__(self) -> "History":
        """Start the git process."""
        self._blobs.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """End the git process."""
        self._blobs.__exit__()

    def find(self, recorded: Mapping[str, str], say: Callable[[str], None]) -> dict[str, bytes]:
        """The contents, by path, of the files and folders that have their recorded hashes.

        Each is taken from the newest commit that has it.

        Args:
            recorded: DVC's hash of each file or folder of code that a stage ran on.
            say: Called with the progress of the search, commit by commit.

        Raises:
            StageError: Some of them were never committed, or this is no git repository.
        """
        files: dict[str, bytes] = {}
        missing = {*recorded}
        for number, commit in enumerate(_commits([*recorded])):
            say(f"looking through the history: commit {number + 1}")
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
            found = {path: about.split()[2] for about, path in split if about.split()[1] == "blob"}
            self._files[commit] = found
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
