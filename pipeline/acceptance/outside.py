"""Facts about code from outside of the project, by dotted name."""

# Outside code that may read names or code of the project in a way that a comparison misses.
READS_CODE = {
    *(f"builtins.{name}" for name in ("eval", "exec", "globals", "locals", "vars", "dir")),
    *("builtins.__import__", "builtins.compile", "sys._getframe", "typing.ForwardRef"),
}
READS_CODE_OF = {"importlib", "inspect", "runpy", "pkgutil", "gc", "ast", "pickle", "copyreg"}
HARMLESS = {
    *("importlib.util.find_spec", "importlib.metadata", "importlib.resources"),
    *("gc.collect", "pkgutil.iter_modules"),
    *("pickle.PickleError", "pickle.UnpicklingError", "ast.literal_eval"),
}
READS_NAME = {"__name__", "__qualname__", "__module__"}
READS_ANY = {"__doc__", "__annotations__", "__code__", "__globals__", "__dict__", "__subclasses__"}
OF_MODULE = {"__doc__", "__package__", "__spec__", "__loader__", "__path__", "__annotations__"}
# Decorators that read no annotations and do nothing but decorate.
DECORATORS = {
    *(f"builtins.{name}" for name in ("property", "staticmethod", "classmethod")),
    *("contextlib.contextmanager", "contextlib.asynccontextmanager", "abc.abstractmethod"),
    *("functools.cache", "functools.lru_cache", "functools.cached_property", "functools.wraps"),
    *("dataclasses.dataclass", "typing.overload", "typing.final", "typing.runtime_checkable"),
    *("torch.inference_mode", "torch.no_grad", "numba.njit"),
}
# Functions that may be called during an import with no effect but their value.
PURE = {
    *(f"builtins.{name}" for name in ("frozenset", "set", "dict", "list", "tuple", "range", "len")),
    *(f"builtins.{name}" for name in ("min", "max", "sum", "sorted", "zip", "enumerate", "map")),
    *(f"builtins.{name}" for name in ("float", "int", "str", "bool", "bytes", "round", "abs")),
    *(f"builtins.{name}" for name in ("object", "slice", "type", "reversed", "filter", "any")),
    *("re.compile", "logging.getLogger", "dataclasses.field", "enum.auto", "struct.Struct"),
    *("functools.partial", "numpy.array", "numpy.float32", "numpy.float64", "numpy.uint64"),
    *("numpy.arange", "numpy.dtype", "decimal.Decimal", "fractions.Fraction", "math.sqrt"),
    *("builtins.getattr", "builtins.hasattr", "builtins.isinstance", "builtins.super"),
    *("builtins.repr", "numpy.int32", "numba.extending.intrinsic", "numba.njit", "reprlib.Repr"),
    *("threading.Lock", "threading.RLock", "threading.local", "contextvars.ContextVar"),
}
PURE_OF = {"typing", "collections", "pathlib", "operator", "math", "itertools"}


def reads_code(name: str) -> bool:
    """Whether an outside object may read names or code of the project."""
    if any(f"{name}.".startswith(f"{harmless}.") for harmless in HARMLESS):
        return False
    return name in READS_CODE or name.partition(".")[0] in READS_CODE_OF or name.startswith("*")


def is_pure(name: str) -> bool:
    """Whether a call during an import has no effect but its value."""
    if name.startswith("builtins."):
        return ".".join(name.split(".")[:2]) in PURE  # or a method of it
    return name in PURE or name.partition(".")[0] in PURE_OF
