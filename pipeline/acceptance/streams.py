"""Converts statements to streams of tokens; equal streams mean that they execute the same.

Comments, docstrings, annotations of functions and of variables, and the names of local variables
are left out. A name of a module becomes a reference to its definition, whatever it is called.
"""

import ast
from collections.abc import Sequence

from pipeline.acceptance.forms import followed, is_mark, place_of, whose_stem
from pipeline.acceptance.modules import (
    Definition,
    External,
    File,
    Target,
    Tree,
    bound,
    here,
    is_idle,
)
from pipeline.acceptance.outside import DECORATORS, OF_MODULE, READS_ANY, READS_NAME, reads_code
from pipeline.acceptance.tokens import OUTSIDE, Everything, Package, Reference, Scope, Stream

BINDING = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)  # a name, as text
SKIPPED = {"type_comment", "kind", "type_params", "type_ignores"}


class _Writer:
    """Writes the tokens of statements at the top level of a module."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.tree, self.module = tree, tree.module(path)
        self.tokens: list[str | None] = []
        self.references: list[Reference] = []
        self.lines: list[int] = []
        self.imported: list[File | External] = []
        self.scopes: list[Scope] = []
        self.entered = self.line = self.raising = 0

    def stream(self) -> Stream:
        return Stream(
            self.module.path,
            tuple(self.tokens),
            tuple(self.references),
            tuple(self.lines),
            tuple(self.imported),
        )

    def emit(self, token: str | Reference) -> None:
        self.lines.append(self.line)
        self.tokens.append(token if isinstance(token, str) else None)
        if not isinstance(token, str):
            self.references.append(token)

    def emit_target(self, target: Target) -> None:
        if not isinstance(target, External):
            is_check = isinstance(target, Definition) and target in self.tree.checks(target.path)
            self.emit("a check of a component's name" if is_check else target)
            return
        self.emit(f"{OUTSIDE}{target.name}")
        if reads_code(target.name):
            self.emit(Everything())

    # Resolution of names

    def scope(self, name: str) -> Scope | None:
        """The scope that a name belongs to; None for that of the module."""
        for scope in reversed(self.scopes):
            if name in scope.globals:
                return None
            if name in scope.names and (scope.kind != "class" or scope is self.scopes[-1]):
                return scope
        return None

    def target(self, node: ast.expr) -> Target | None:
        """The target of a name, or of attributes of a name; None if it is only known at runtime."""
        if isinstance(node, ast.Name):
            if (scope := self.scope(node.id)) is not None:
                return scope.aliases.get(node.id)
            return self.tree.resolve(self.module.path, node.id)
        if isinstance(node, ast.Attribute):
            base = self.target(node.value)
            return self.tree.member(base, node.attr) if isinstance(base, External | File) else None
        return None

    def bind(self, name: str) -> None:
        scope = self.scope(name)
        if scope is None:
            self.emit(Definition(self.module.path, name))
        else:
            self.emit(scope.token(name))

    # Nodes

    def visit(self, node: object) -> None:
        if isinstance(node, list):
            self.visit_list(node)
        elif not isinstance(node, ast.AST):
            self.emit(f"{type(node).__name__} {node!r}")
        else:
            self.line = getattr(node, "lineno", self.line)
            visit = getattr(self, f"visit_{type(node).__name__}", self.visit_fields)
            visit(node)

    def visit_list(self, nodes: list[object]) -> None:
        kept = [node for node in nodes if not self.leaves_no_trace(node)]
        self.emit(f"{sum(not self.is_inner_import(node) for node in kept)} of")
        for node in kept:
            self.visit(node)

    def leaves_no_trace(self, node: object) -> bool:
        if isinstance(node, ast.AnnAssign) and not self.in_class():
            return node.value is None
        return isinstance(node, ast.Global | ast.Nonlocal) or (
            isinstance(node, ast.stmt) and is_idle(node)
        )

    def in_class(self) -> bool:
        return bool(self.scopes) and self.scopes[-1].kind == "class"

    def is_inner_import(self, node: object) -> bool:
        if not isinstance(node, ast.Import | ast.ImportFrom) or not self.scopes:
            return False
        names = bound([node])
        return all(name in self.scopes[-1].aliases for name in names)

    def visit_fields(self, node: ast.AST) -> None:
        self.emit(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(node, BINDING) and field in ("name", "rest") and value:
                self.bind(value)
            elif field not in SKIPPED:
                self.visit(value)

    def visit_Constant(self, node: ast.Constant) -> None:
        self.emit(f"{type(node.value).__name__} {node.value!r}")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if self.in_class():
            self.visit_fields(node)
        else:
            self.emit("Assign")
            self.visit([node.target])
            self.visit(node.value)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Write an import; one of project modules in a function runs them, and binds names."""
        followed = self.is_inner_import(node)
        if self.scopes:
            self.imported += self.tree.modules(self.module, node)
        for name, target in self.tree.imports(self.module, node):
            if not followed:
                self.bind(name)
            if not followed or isinstance(target, External):
                self.emit("import")
                self.emit_target(target)

    visit_ImportFrom = visit_Import

    def visit_Name(self, node: ast.Name) -> None:
        self.emit(type(node.ctx).__name__)
        target = self.target(node)
        if (scope := self.scope(node.id)) is not None:
            if target is not None:
                self.emit_target(target)
                return
            self.emit(scope.token(node.id))
            if scope.kind != "class" or not isinstance(node.ctx, ast.Load):
                return
            outer = self.scopes.pop()  # a class body reads the global name before it binds its own
            self.visit_Name(node)
            self.scopes.append(outer)
        elif node.id in self.module.names or not node.id.startswith("__"):
            if isinstance(node.ctx, ast.Load):
                self.emit_target(target or Definition(self.module.path, node.id))
            else:
                self.emit(Definition(self.module.path, node.id))
        else:
            self.emit(node.id)
            if node.id in READS_NAME | OF_MODULE | {"__file__"}:
                self.emit(Everything(names_only=node.id in READS_NAME | {"__file__"}))
            elif node.id != "__debug__":
                self.emit_target(External(f"builtins.{node.id}"))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (place := self.place(node)) is not None:
            self.emit_place(place)
            return
        target = self.target(node)
        if target is not None:
            self.emit(type(node.ctx).__name__)
            self.emit_target(target)
            if isinstance(target, Definition) and target.name.startswith("__"):
                self.emit(Everything())
            return
        if node.attr in READS_ANY:
            self.emit(Everything())
        elif node.attr in READS_NAME and not self.raising:
            self.emit(Everything(names_only=True))
        self.visit_fields(node)

    def visit_Call(self, node: ast.Call) -> None:
        if (place := self.place(node)) is not None:
            self.emit_place(place)
            return
        target = self.target(node.func)
        if target == External("logging.getLogger") and ast.unparse(node) == (
            f"{ast.unparse(node.func)}(__name__)"
        ):
            self.emit("logger of this module")
            return
        if isinstance(target, External) and target.name in (
            "builtins.getattr",
            "builtins.hasattr",
            "builtins.setattr",
            "builtins.delattr",
        ):
            if any(isinstance(self.target(one), File) for one in node.args):
                self.emit(Everything())
        if self.visit_load(node, target):
            return
        self.visit_fields(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Write a statement; of a check, which may only refuse a name, write just the function."""
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
        target = self.target(calls[0].func) if len(calls) == 1 else None
        if node.value in calls and isinstance(target, Definition):
            if target in self.tree.checks(target.path):
                self.emit_target(target)
                return
        self.visit_fields(node)

    def visit_load(self, node: ast.Call, target: Target | None) -> bool:
        """Write a call of a loader, or one that passes a package to a function beside a loader."""
        if not isinstance(target, Definition) or target.path not in self.tree.paths:
            return False
        loaders = self.tree.loaders(target.path)
        if loader := loaders.get(target.name):
            package = None if node.keywords else loader.package(node.args)
            if package is None or loader.name >= len(node.args):
                self.emit(Everything())
                return False
            last = node.args[loader.name]
            one = last.value if isinstance(last, ast.Constant) else None
            self.emit("load")
            self.emit(Package(package, one=one))
            self.visit(last)
            return True
        for loader in loaders.values() if len(node.args) == 1 and not node.keywords else ():
            package = loader.package(node.args)
            if package and package.replace(".", "/") in self.tree.folders:
                self.emit("Call")
                self.visit(node.func)
                self.emit(Package(package))
                return True
        return False

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        first = node.values[0] if len(node.values) > 1 else None
        text = first.value if isinstance(first, ast.Constant) else ""
        if text.endswith(".") and text[:-1].replace(".", "/") in self.tree.folders:
            self.emit("a module's name")
            self.emit(Package(text[:-1], by_text=True))
            self.visit(node.values[1:])
        else:
            self.visit_fields(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.raising += 1
        self.visit_fields(node)
        self.raising -= 1

    # Scopes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.emit(type(node).__name__)
        self.visit(node.decorator_list)
        known = all(self.is_known(one) for one in node.decorator_list)
        self.bind(node.name)
        self.visit_arguments(node.args, annotated=not known)
        if not known:
            self.visit(node.returns)
        self.enter_function(node, node.body)
        self.visit(node.body)
        self.scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def is_known(self, decorator: ast.expr) -> bool:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        target = self.target(function)
        setter = isinstance(function, ast.Attribute) and function.attr in ("setter", "getter")
        return setter or (isinstance(target, External) and target.name in DECORATORS)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.emit("Lambda")
        self.visit_arguments(node.args, annotated=False)
        self.enter_function(node, [node.body])
        self.visit(node.body)
        self.scopes.pop()

    def visit_arguments(self, node: ast.arguments, *, annotated: bool) -> None:
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            found = getattr(node, kind)
            each = found if isinstance(found, list) else [found] if found else []
            self.emit(f"{len(each)} {kind}")
            for one in each:
                self.emit(f"parameter {one.arg}")
                if annotated:
                    self.visit(one.annotation)
        self.visit(node.defaults)
        self.visit(node.kw_defaults)

    def enter_function(self, node: ast.AST, body: list[ast.AST]) -> None:
        kinds = node.args
        each = [*kinds.posonlyargs, *kinds.args, *kinds.kwonlyargs, kinds.vararg, kinds.kwarg]
        arguments = {one.arg for one in each if one is not None}
        inner = [one for statement in body for one in here(statement)]
        outer = {n for one in inner if isinstance(one, ast.Nonlocal) for n in one.names}
        of_module = {n for one in inner if isinstance(one, ast.Global) for n in one.names}
        names = (arguments | {*bound(body)}) - outer - of_module
        scope = self.enter("function", names, arguments)
        scope.globals = of_module
        imports = [one for one in inner if isinstance(one, ast.Import | ast.ImportFrom)]
        scope.aliases = followed(self.tree, self.module, imports, body, names - arguments)

    def enter(self, kind: str, names: set[str], parameters: set[str] = frozenset()) -> Scope:
        self.entered += 1
        self.scopes.append(Scope(kind, self.entered, names, parameters))
        return self.scopes[-1]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.emit("ClassDef, its annotations as text" if self.module.future else "ClassDef")
        for each in (node.decorator_list, node.bases, node.keywords):
            self.visit(each)
        self.bind(node.name)
        if not self.scopes and is_mark(node) and self.tree.loaders(self.module.path):
            self.emit("a mark, of one text")
            return
        of_module = {n for one in node.body if isinstance(one, ast.Global) for n in one.names}
        self.enter("class", {*bound(node.body)} - of_module).globals = of_module
        self.visit(node.body)
        self.scopes.pop()

    def visit_comprehension_scope(self, node: ast.AST) -> None:
        self.emit(type(node).__name__)
        first, *others = node.generators
        self.visit(first.iter)
        targets = [one for each in node.generators for one in ast.walk(each.target)]
        self.enter("comprehension", {one.id for one in targets if isinstance(one, ast.Name)})
        self.emit(f"{len(others)} more")
        for each in (first, *others):
            self.visit(each.target)
            if each is not first:
                self.visit(each.iter)
            self.visit(each.ifs)
            self.emit(f"async {each.is_async}")
        for field in ("key", "value", "elt"):
            self.visit(getattr(node, field, None))
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comprehension_scope

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if (module := whose_stem(node)) is not None:
            self.emit("last part of the name of")
            self.visit(module)
        else:
            self.visit_fields(node)

    # Paths of files

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if (place := self.place(node)) is not None:
            self.emit_place(place)
        else:
            self.visit_fields(node)

    def place(self, node: ast.expr) -> str | None:
        """The project path to which an expression of ``Path(__file__)`` evaluates, or None."""
        return place_of(node, self.module.path, self.target)

    def emit_place(self, place: str) -> None:
        if place in self.tree.paths and not place.endswith(".py"):
            self.emit(f"a file of {self.tree.read(place)!r}")
        else:
            self.emit(f"the place {place}")


def write(tree: Tree, path: str, statements: Sequence[ast.stmt]) -> Stream:
    """The stream of statements at the top level of a module."""
    writer = _Writer(tree, path)
    for statement in statements:
        writer.visit(statement)
    return writer.stream()
