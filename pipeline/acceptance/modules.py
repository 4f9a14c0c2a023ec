"""Resolves names in one version of the project's Python code to definitions.

Imports are followed, so that a name resolves to the same definition, whatever module it is imported
from and under whatever name.
"""

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rrcm.core.errors import StageError

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class External:
    """An object from outside of the project, by its dotted name; ``len`` is ``builtins.len``."""

    name: str


@dataclass(frozen=True, slots=True)
class File:
    """A module of the project; a package is its ``__init__.py``, even if that does not exist."""

    path: str


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a name at the top level of a module."""

    path: str
    name: str


Target: TypeAlias = External | File | Definition


@dataclass(frozen=True, slots=True)
class Loader:
    """A function that imports a component, as by ``import_module(f"rrcm.{folder}.{name}")``.

    ``template`` is the f-string without its last part, the name: texts, and parameters by their
    position. A parameter may be looked up in a table of the module, as in ``FOLDERS[kind]``.
    """

    template: tuple["str | Parameter", ...]
    name: int

    def package(self, arguments: list[ast.expr]) -> str | None:
        """The dotted package that a call loads from; None if its arguments are not literals."""
        parts = []
        for part in self.template:
            if isinstance(part, Parameter):
                if part.place >= len(arguments) or not _is_text(arguments[part.place]):
                    return None
                value = arguments[part.place].value
                text = value if part.table is None else dict(part.table).get(value)
                if text is None:
                    return None
                part = text.replace("/", ".")
            parts.append(part)
        return "".join(parts).removesuffix(".")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a `Loader`, and the rows of the table in which it is looked up."""

    place: int
    table: tuple[tuple[str, str], ...] | None = None


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


class Module:
    """A parsed file.

    ``names`` maps each name to the statements at the top level that bind it; ``stars`` are the
    modules of ``import *``; ``reassigned`` are names assigned as an attribute or by ``global``.
    """

    def __init__(self, path: str, source: bytes) -> None:
        """Parse it.

        Raises:
            StageError: The source is not Python.
        """
        self.path, self.source = path, source
        try:
            self.body = ast.parse(source).body
        except (SyntaxError, ValueError) as error:
            raise StageError(f"{path}: not Python ({error})") from None
        self.names: dict[str, list[ast.stmt]] = {}
        for statement in self.body:
            for name in dict.fromkeys(bound([statement])):
                self.names.setdefault(name, []).append(statement)
        nodes = [node for statement in self.body for node in ast.walk(statement)]
        froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        self.stars = [self.origin(node) for node in froms if node.names[0].name == "*"]
        self.future = any(node.module == "__future__" for node in froms)
        of_globals = {n for node in nodes if isinstance(node, ast.Global) for n in node.names}
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        stored = {node.attr for node in attributes if not isinstance(node.ctx, ast.Load)}
        self.reassigned = frozenset(of_globals | stored)
        for name in of_globals:
            self.names.setdefault(name, [])
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and _is_text(node)}
        self.words = frozenset(texts | {node.attr for node in attributes})
        self.read = frozenset(
            node.id
            for statement in self.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and node.id != getattr(statement, "name", None)
        )

    def origin(self, node: ast.ImportFrom) -> str:
        """The dotted name of the module that a statement imports from."""
        if not node.level:
            return node.module or ""
        folders = self.path.split("/")[: -node.level]
        return ".".join([*folders, *([node.module] if node.module else [])])

    def line(self, number: int) -> str:
        """A line of the source, for messages."""
        lines = self.source.decode("utf-8", errors="replace").splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


class Tree:
    """The files of one version, each read on demand."""

    def __init__(self, paths: Collection[str], read: Callable[[str], bytes]) -> None:
        """``read`` returns the bytes of any of ``paths``, which are relative to the project."""
        self.paths, self._read = frozenset(paths), read
        self._contents: dict[str, bytes] = {}
        self._modules: dict[str, Module] = {}
        self._loaders: dict[str, dict[str, Loader]] = {}
        self._checks: dict[str, set[Definition]] = {}
        code = [path for path in self.paths if path.endswith(".py")]
        self.folders = {p[:i] for p in code for i, character in enumerate(p) if character == "/"}
        self.tops = {path.removesuffix(".py").partition("/")[0] for path in code}

    def read(self, path: str) -> bytes:
        """The contents of a file."""
        if path not in self._contents:
            self._contents[path] = self._read(path)
        return self._contents[path]

    def module(self, path: str) -> Module:
        """A parsed file."""
        if path not in self._modules:
            self._modules[path] = Module(path, self.read(path))
        return self._modules[path]

    def stems(self, package: str) -> set[str]:
        """The names of a package's own modules that do not begin with an underscore."""
        folder = package.replace(".", "/") + "/"
        found = (p.removeprefix(folder) for p in self.paths if p.startswith(folder))
        return {p[:-3] for p in found if p.endswith(".py") and "/" not in p and p[0] != "_"}

    def locate(self, dotted: str) -> File | External:
        """The module with a dotted name."""
        path = dotted.replace(".", "/")
        if dotted.partition(".")[0] not in self.tops:
            return External(dotted)
        package = f"{path}.py" not in self.paths and path in self.folders
        return File(f"{path}/__init__.py" if package else f"{path}.py")

    def resolve(
        self, path: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> Target:
        """The target to which a name of a module resolves."""
        module = self.module(path)
        if name not in module.names:
            of = "*".join(["", *sorted(module.stars)]) if module.stars else "builtins"
            return External(f"{of}.{name}")
        if (path, name) not in seen:
            seen |= {(path, name)}
            targets = {self._imported(module, one, name, seen) for one in module.names[name]}
            if len(targets) == 1 and (target := targets.pop()):
                return target
        return Definition(path, name)

    def _imported(
        self, module: Module, node: ast.stmt, name: str, seen: frozenset[tuple[str, str]]
    ) -> Target | None:
        """The target to which a statement binds a name, if it is an import."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            return dict(self.imports(module, node, seen)).get(name)
        return None

    def imports(
        self,
        module: Module,
        node: ast.Import | ast.ImportFrom,
        seen: frozenset[tuple[str, str]] = frozenset(),
    ) -> Iterator[tuple[str, Target]]:
        """The names that an import binds, each with its target."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, self.locate(whole)
            elif alias.name != "*":
                base = self.locate(module.origin(node))
                yield alias.asname or alias.name, self.member(base, alias.name, seen)

    def modules(self, module: Module, node: ast.Import | ast.ImportFrom) -> list[File | External]:
        """The modules that an import executes unless they have been imported already."""
        dotted = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            origin = module.origin(node)
            inner = [self.locate(f"{origin}.{name}") for name in dotted]
            return [self.locate(origin), *(f for f in inner if self.has(f))]
        return [self.locate(name) for name in dotted]

    def has(self, target: Target) -> bool:
        """Whether a target is a file of this version."""
        return isinstance(target, File) and target.path in self.paths

    def member(
        self, base: File | External, name: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> Target:
        """The target to which an attribute of a module resolves."""
        if isinstance(base, External):
            return External(f"{base.name}.{name}")
        if self.has(base) and name in self.module(base.path).names:
            return self.resolve(base.path, name, seen)
        folder, is_package = (
            base.path.removesuffix("/__init__.py"),
            base.path.endswith("__init__.py"),
        )
        inner = self.locate(f"{folder.replace('/', '.')}.{name}")
        if is_package and isinstance(inner, File):
            if self.has(inner) or inner.path.endswith("__init__.py"):
                return inner
        return Definition(base.path, name)

    def loaders(self, path: str) -> dict[str, Loader]:
        """The functions of a module that are a `Loader`."""
        if path not in self._loaders:
            found = {name: self._loader(path, name) for name in self.module(path).names}
            self._loaders[path] = {name: one for name, one in found.items() if one}
        return self._loaders[path]

    def checks(self, path: str) -> set[Definition]:
        """The functions that a module's loaders call before the import, ignoring the result."""
        if path not in self.paths:
            return set()
        if path not in self._checks:
            found = set()
            for name in self.loaders(path):
                (function,) = self.module(path).names[name]
                calls = [one.value for one in function.body if isinstance(one, ast.Expr)]
                names = [one.func for one in calls if isinstance(one, ast.Call)]
                found |= {self.resolve(path, one.id) for one in names if isinstance(one, ast.Name)}
            self._checks[path] = {one for one in found if isinstance(one, Definition)}
        return self._checks[path]

    def _loader(self, path: str, name: str) -> Loader | None:
        """The `Loader` that a function is, or None. Before the import, it may only pass its
        arguments to checks, which may refuse a name but not change what is loaded.
        """
        statements = self.module(path).names[name]
        if len(statements) != 1 or not isinstance(function := statements[0], ast.FunctionDef):
            return None
        places = {argument.arg: i for i, argument in enumerate(function.args.args)}
        *checks, last = [one for one in function.body if not is_idle(one)] or [None]
        call = last.value if isinstance(last, ast.Return) else None
        if not isinstance(call, ast.Call) or function.decorator_list or len(call.args) != 1:
            return None
        if not all(_is_check(one, places) for one in checks):
            return None
        template = self._template(path, call.args[0], places)
        imports = self._dotted(path, call.func) == "importlib.import_module"
        if not imports or len(template) < 2 or not isinstance(template[-1], Parameter):
            return None
        return Loader(template[:-1], template[-1].place)

    def _template(
        self, path: str, node: ast.expr, places: dict[str, int]
    ) -> tuple[str | Parameter, ...]:
        """The parts of an f-string of texts and parameters; empty for any other expression."""
        parts: list[str | Parameter | None] = []
        for one in node.values if isinstance(node, ast.JoinedStr) else []:
            if _is_text(one):
                parts.append(one.value)
            elif isinstance(one, ast.FormattedValue):
                plain = one.conversion == -1 and one.format_spec is None
                parts.append(self._parameter(path, one.value, places) if plain else None)
        return () if None in parts else tuple(parts)

    def _parameter(self, path: str, node: ast.expr, places: dict[str, int]) -> Parameter | None:
        text = ast.unparse(node).removesuffix(".replace('/', '.')")
        if text in places:
            return Parameter(places[text])
        name, _, key = text.removesuffix("]").partition("[")
        statements = self.module(path).names.get(name, [])
        if len(statements) != 1 or key not in places:
            return None
        table = getattr(statements[0], "value", None)
        if not isinstance(table, ast.Dict) or not all(map(_is_text, [*table.keys, *table.values])):
            return None
        rows = zip((k.value for k in table.keys), (v.value for v in table.values), strict=True)
        return Parameter(places[key], tuple(rows))

    def _dotted(self, path: str, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            target = self.resolve(path, node.id)
            return target.name if isinstance(target, External) else ""
        if isinstance(node, ast.Attribute) and (base := self._dotted(path, node.value)):
            return f"{base}.{node.attr}"
        return ""


def _is_check(node: ast.stmt, places: dict[str, int]) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and not call.keywords
        and all(isinstance(one, ast.Name) and one.id in places for one in call.args)
    )


def is_idle(node: ast.stmt) -> bool:
    """Whether a statement does nothing: a docstring, ``pass``, a block for type checkers."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass) or (is_for_types(node) and not node.orelse)


def is_for_types(node: ast.AST) -> bool:
    """Whether a node is ``if TYPE_CHECKING``, whose body never runs."""
    if not isinstance(node, ast.If):
        return False
    name = getattr(node.test, "id", None) or getattr(node.test, "attr", None)
    return name == "TYPE_CHECKING"


def is_main(node: ast.AST) -> bool:
    """Whether a node is ``if __name__ == "__main__"``."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def here(node: ast.AST) -> Iterator[ast.AST]:
    """A node and its descendants in the same scope: no bodies of functions, classes or lambdas."""
    yield node
    inner: list[ast.AST | None] = [*ast.iter_child_nodes(node)]
    if isinstance(node, (*FUNCTION, ast.Lambda)):
        inner = [*node.args.defaults, *node.args.kw_defaults, *getattr(node, "decorator_list", [])]
    elif isinstance(node, ast.ClassDef):
        inner = [*node.decorator_list, *node.bases, *node.keywords]
    elif is_for_types(node):
        inner = [*node.orelse]
    for one in inner:
        if one is not None:
            yield from here(one)


def bound(nodes: Collection[ast.AST]) -> Iterator[str]:
    """The names that statements bind in their own scope."""
    for node in nodes:
        of_comprehensions = {
            id(name)
            for one in here(node)
            if isinstance(one, COMPREHENSION)
            for generator in one.generators
            for name in ast.walk(generator.target)
        }
        for one in here(node):
            if isinstance(one, ast.Name):
                if not isinstance(one.ctx, ast.Load) and id(one) not in of_comprehensions:
                    yield one.id
            elif isinstance(one, ast.Import | ast.ImportFrom):
                for alias in one.names:
                    first = alias.name.partition(".")[0]
                    if alias.name != "*":
                        yield alias.asname or first
            elif isinstance(one, (*FUNCTION, ast.ClassDef)):
                yield one.name
            elif isinstance(one, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and one.name:
                yield one.name
            elif isinstance(one, ast.MatchMapping) and one.rest:
                yield one.rest
