"""The program of a stage: its script, the modules that it imports, and their effects."""

import ast
import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from pipeline.acceptance.modules import (
    FUNCTION,
    Definition,
    External,
    File,
    Module,
    Target,
    Tree,
    here,
    is_idle,
    is_main,
)
from pipeline.acceptance.outside import DECORATORS, is_pure
from pipeline.acceptance.streams import write
from pipeline.acceptance.tokens import OUTSIDE, Stream


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file; ``text`` is the line."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


class Code:
    """A version of the code, with derived facts that are computed once for all stages."""

    def __init__(self, tree: Tree) -> None:
        """Compute nothing yet; everything is computed on demand."""
        self.tree = tree
        self._streams: dict[object, Stream] = {}

    def definition(self, one: Definition) -> Stream:
        """The statements that bind a name."""
        if one not in self._streams:
            names = self.tree.module(one.path).names
            statements = names.get(one.name, names.get("__getattr__", []))
            self._streams[one] = write(self.tree, one.path, statements)
        return self._streams[one]

    def statement(self, path: str, statement: ast.stmt) -> Stream:
        """One statement at the top level of a module."""
        key = (path, id(statement))  # unique, because the module keeps the statement alive
        if key not in self._streams:
            self._streams[key] = write(self.tree, path, [statement])
        return self._streams[key]

    def is_constant(self, one: Definition) -> bool:
        """Whether a name is bound once, to something that cannot change."""
        statements = self.tree.module(one.path).names.get(one.name, [])
        if len(statements) != 1 or not isinstance(statements[0], ast.Assign | ast.AnnAssign):
            return False
        value, targets = statements[0].value, getattr(statements[0], "targets", [None])
        kinds = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
        named = len(targets) == 1 and not isinstance(targets[0], ast.Tuple)
        return named and value is not None and all(isinstance(x, kinds) for x in ast.walk(value))

    def has_effect(self, path: str, node: ast.stmt) -> bool:
        """Whether a statement, when its module is imported, does more than define something."""
        if isinstance(node, ast.Import | ast.ImportFrom) or is_idle(node):
            return False
        if isinstance(node, FUNCTION):
            defaults = [one for one in (*node.args.defaults, *node.args.kw_defaults) if one]
            pure = all(self._is_pure(path, one) for one in defaults)
            return not (pure and all(self._is_decorator(path, one) for one in node.decorator_list))
        if isinstance(node, ast.ClassDef):
            return not (
                all(self._is_decorator(path, one) for one in node.decorator_list)
                and not node.keywords
                and not any(self._has_hook(path, base) for base in node.bases)
                and not any(self.has_effect(path, one) for one in node.body)
            )
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = all(
                isinstance(one, ast.Name | ast.Tuple | ast.List | ast.Store)
                for target in targets
                for one in ast.walk(target)
            )
            return not (names and (node.value is None or self._is_pure(path, node.value)))
        return True

    def _is_pure(self, path: str, node: ast.expr) -> bool:
        called = [one for one in here(node) if isinstance(one, ast.Call)]
        others = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
        return all(self._is_pure_call(path, one) for one in called) and not any(
            isinstance(one, others) for one in here(node)
        )

    def _is_pure_call(self, path: str, node: ast.Call) -> bool:
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant):
            return True  # a method of a string literal
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            return self._is_pure_call(path, function.value)  # pure if the inner call is
        target = self._target(path, function)
        if isinstance(target, External):
            return is_pure(target.name)
        return isinstance(target, Definition) and self._is_closed(target, set())

    def _is_closed(self, one: Definition, seen: set[Definition]) -> bool:
        """Whether a function or class, and all that it uses, has no state and no effect."""
        if one in seen or one.path not in self.tree.paths or self.is_constant(one):
            return one in seen or one.path in self.tree.paths
        seen.add(one)
        kinds = [type(node) for node in self.tree.module(one.path).names.get(one.name, [])]
        stream = self.definition(one)
        outside = [
            token.removeprefix(OUTSIDE) for token in stream.tokens if token and OUTSIDE in token
        ]
        return (
            kinds in ([ast.FunctionDef], [ast.ClassDef])
            and not stream.imported
            and all(is_pure(name) for name in outside)
            and all(
                isinstance(inner, Definition) and self._is_closed(inner, seen)
                for inner in stream.references
            )
        )

    def _is_decorator(self, path: str, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return self._outside(path, node.func) in DECORATORS
        setter = isinstance(node, ast.Attribute) and node.attr in ("setter", "getter")
        return setter or self._outside(path, node) in DECORATORS

    def _has_hook(self, path: str, node: ast.expr, depth: int = 0) -> bool:
        """Whether a base class of the project may run code when it is subclassed."""
        target = self._target(path, node)
        if not isinstance(target, Definition) or target.path not in self.tree.paths or depth > 50:
            return not isinstance(target, External)
        for statement in self.tree.module(target.path).names.get(target.name, []):
            if not isinstance(statement, ast.ClassDef) or statement.keywords:
                return True
            methods = {getattr(one, "name", "") for one in statement.body}
            if "__init_subclass__" in methods or any(
                self._has_hook(target.path, base, depth + 1) for base in statement.bases
            ):
                return True
        return False

    def _target(self, path: str, node: ast.expr) -> Target | None:
        if isinstance(node, ast.Subscript):  # Generic[T]
            return self._target(path, node.value)
        if isinstance(node, ast.Name):
            return self.tree.resolve(path, node.id)
        if isinstance(node, ast.Attribute):
            base = self._target(path, node.value)
            return self.tree.member(base, node.attr) if isinstance(base, External | File) else None
        return None

    def _outside(self, path: str, node: ast.expr) -> str:
        target = self._target(path, node)
        return target.name if isinstance(target, External) else ""


class Program:
    """The code of a stage: the script that it runs, and the files that it depends on."""

    def __init__(self, code: Code, script: str, files: Collection[str]) -> None:
        """``files`` are the paths to compare; ``script`` is one of them."""
        self.code, self.tree, self.script = code, code.tree, script
        self.files = frozenset(files) | {script}
        self.effects: list[tuple[Stream, Place]] = []
        self.passed: set[str] = set()  # modules that are imported, but not compared
        self._run: set[str] = set()

    def run(self, path: str, *, ignored: Collection[str] = ()) -> None:
        """Append to ``effects`` those of importing a module, and of its imports, in order."""
        if path in self._run or path in ignored or path not in self.tree.paths:
            return
        if path not in self.files:
            self.passed.add(path)
            return
        self._run.add(path)
        for i, character in enumerate(path):  # packages that contain it
            if character == "/":
                self.run(f"{path[:i]}/__init__.py", ignored=ignored)
        module = self.tree.module(path)
        for statement in module.body:
            if is_main(statement):
                if path == self.script:
                    for one in statement.body:
                        self._add(module, one)
                continue
            for node in here(statement):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    self._import(module, node, ignored)
            if self.code.has_effect(path, statement):
                self._add(module, statement)

    def _import(
        self, module: Module, node: ast.Import | ast.ImportFrom, ignored: Collection[str]
    ) -> None:
        for target in self.tree.modules(module, node):
            if isinstance(target, File):
                self.run(target.path, ignored=ignored)
        names = dict(self.tree.imports(module, node))
        outside = [target for target in names.values() if isinstance(target, External)]
        if outside and not module.read & {*names} and outside[0].name.split(".")[0] != "__future__":
            self._add(module, node)  # for the effects of the import, as none of its names is used

    def _add(self, module: Module, statement: ast.stmt) -> None:
        place = Place(module.path, statement.lineno, module.line(statement.lineno))
        self.effects.append((self.code.statement(module.path, statement), place))

    def place(self, stream: Stream, index: int) -> Place:
        """The place in the source of a token."""
        if not stream.lines:
            return Place(stream.path, 0, "nothing")
        line = stream.lines[min(index, len(stream.lines) - 1)]
        return Place(stream.path, line, self.tree.module(stream.path).line(line))

    def contents(self, *, names_only: bool) -> str:
        """A digest of all compared files, or only of their names and top-level names."""
        digest = hashlib.sha256()
        for path in sorted(self.files & self.tree.paths):
            digest.update(path.encode())
            if not names_only:
                digest.update(self.tree.read(path))
            elif path.endswith(".py"):
                digest.update("\0".join(sorted(self.tree.module(path).names)).encode())
        return digest.hexdigest()

    def words(self) -> frozenset[str]:
        """Every attribute name and string of the files."""
        modules = [self.tree.module(p) for p in self.files & self.tree.paths if p.endswith(".py")]
        return frozenset().union(*(module.words for module in modules))

    def reassigned(self) -> frozenset[str]:
        """Names that some code assigns to as attributes or by ``global``."""
        modules = [self.tree.module(p) for p in self.files & self.tree.paths if p.endswith(".py")]
        return frozenset().union(*(module.reassigned for module in modules))

    def listed(self, package: str) -> set[str]:
        """The compared modules of a package, without their folder and suffix."""
        folder = package.replace(".", "/")
        paths = [PurePosixPath(path) for path in self.files if path.endswith(".py")]
        return {p.stem for p in paths if str(p.parent) == folder and not p.stem.startswith("_")}

    def has_run(self, path: str) -> bool:
        """Whether a module is known to be imported."""
        return path in self._run
