"""Recognizes expressions with a special meaning: paths of files, marker classes, parts of names."""

import ast
import posixpath
from collections.abc import Callable, Sequence

from pipeline.acceptance.modules import External, Module, Target, Tree, bound, is_idle


def place_of(node: ast.expr, path: str, target: Callable[[ast.expr], Target | None]) -> str | None:
    """The project path to which an expression of ``Path(__file__)`` evaluates, or None."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        base, last = place_of(node.left, path, target), node.right
        text = last.value if isinstance(last, ast.Constant) else None
        return posixpath.join(base, text) if base is not None and type(text) is str else None
    if isinstance(node, ast.Attribute) and node.attr == "parent":
        base = place_of(node.value, path, target)
        return None if base is None else posixpath.dirname(base)
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("resolve", "with_name"):
        if (base := place_of(node.func.value, path, target)) is None or node.func.attr == "resolve":
            return base
        (name,) = node.args if len(node.args) == 1 else (None,)
        text = name.value if isinstance(name, ast.Constant) else None
        folder = posixpath.dirname(base)
        return posixpath.join(folder, text) if type(text) is str else None
    (argument,) = node.args if len(node.args) == 1 else (None,)
    if not isinstance(argument, ast.Name) or argument.id != "__file__":
        return None
    return path if target(node.func) == External("pathlib.Path") else None


def is_mark(node: ast.ClassDef) -> bool:
    """Whether a class only has one named text, as markers of component names do."""
    fields = [one for one in node.body if not is_idle(one)]
    field = fields[0] if len(fields) == 1 else None
    text = isinstance(field, ast.AnnAssign) and field.value is None
    return text and ast.unparse(field.annotation) == "str" and not node.bases


def whose_stem(node: ast.Subscript) -> ast.expr | None:
    """X of ``X.__name__.rpartition(".")[2]``, which does not depend on the package of X."""
    call = node.value
    name = call.func.value if isinstance(call, ast.Call) and hasattr(call.func, "value") else None
    if not isinstance(name, ast.Attribute) or name.attr != "__name__":
        return None
    same = ast.unparse(node) == f"{ast.unparse(name)}.rpartition('.')[2]"
    return name.value if same else None


def followed(
    tree: Tree,
    module: Module,
    imports: Sequence[ast.Import | ast.ImportFrom],
    body: Sequence[ast.AST],
    names: set[str],
) -> dict[str, Target]:
    """The names of a function that only imports bind, and always to the same target."""
    found: dict[str, set[Target]] = {}
    for one in imports:
        for name, target in tree.imports(module, one):
            found.setdefault(name, set()).add(target)
    every, of_imports = [*bound(body)], [*bound(imports)]
    return {
        name: next(iter(targets))
        for name, targets in found.items()
        if name in names and len(targets) == 1 and every.count(name) == of_imports.count(name)
    }
