"""Decides whether two versions of the code of a stage are the same program.

Two versions are the same if their definitions can be paired, one to one, so that both scripts
execute the same statements in the same order, and so does all project code that they use. The
following may differ: the file of a definition, its name at the top level of its module, the order
of definitions, and how they are imported; comments, docstrings, annotations of functions and of
variables (not those in a class, which dataclasses read), and names of local variables. Attributes,
parameters, constants, texts of messages, default arguments, decorators and fields are compared as
they are written. Names that cannot be resolved count as different unless all the code is the same.

Guarantee: with the same inputs, parameters, packages and machine, both versions compute the same
result. Not compared are: data files (DVC does that), native libraries, versions of packages and
side effects of importing them; code that dvc.yaml does not list for the stage, mainly `checked.py`;
locations and names of code where they are only shown, in errors, tracebacks, ``repr`` and metadata
of an ONNX file; annotations of functions that ``typing.get_type_hints`` reads; and the body of the
function that loads components by name, which is recognized by its form.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from pipeline.acceptance.modules import Definition, External, File, Target
from pipeline.acceptance.programs import Place, Program
from pipeline.acceptance.tokens import Everything, Package, Reference, Stream


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two programs differ."""

    old: Place
    new: Place


class Different(Exception):
    """Two programs differ, at these places."""

    def __init__(self, old: Place, new: Place) -> None:
        """Store the places of the statements that differ."""
        super().__init__(old, new)
        self.difference = Difference(old, new)


class _Comparison:
    """Pairs the definitions of two programs, and fails where they cannot be paired."""

    def __init__(self, old: Program, new: Program) -> None:
        self.old, self.new = old, new
        self.pairs: dict[object, object] = {}
        self.taken: dict[object, object] = {}
        self.compared: set[tuple[object, object]] = set()
        self.waiting: list[tuple[Reference, Reference]] = []
        self.to_run: tuple[list[str], list[str]] = ([], [])
        self.reassigned = old.reassigned() | new.reassigned()
        self.words = old.words() & new.words()  # a word of one program alone is itself a difference

    def compare(self) -> None:
        """Compare the statements of both scripts, and all code that they use.

        Raises:
            Different: The programs differ.
        """
        self.old.run(self.old.script)
        ignored = {
            path
            for path in self.new.files & self.new.tree.paths
            if any(self.moved(passed, path) for passed in self.old.passed)
        }
        self.new.run(self.new.script, ignored=ignored)
        done = 0
        while True:
            effects = zip(self.old.effects[done:], self.new.effects[done:], strict=False)
            for (old, _), (new, _) in effects:
                self.streams(old, new)
            short = min(len(self.old.effects), len(self.new.effects))
            self.finish()
            for side, paths in zip((self.old, self.new), self.to_run, strict=True):
                for path in paths:
                    side.run(path, ignored=ignored if side is self.new else ())
                paths.clear()
            if len(self.old.effects) == len(self.new.effects) == short:
                return
            if short == done:
                break
            done = short
        nothing = Place("", 0, "nothing")
        places = [
            program.effects[done][1] if len(program.effects) > done else nothing
            for program in (self.old, self.new)
        ]
        raise Different(*places)

    def finish(self) -> None:
        while self.waiting:
            old, new = self.waiting.pop()
            if isinstance(old, Definition):
                first, second = self.old.code.definition(old), self.new.code.definition(new)
                self.streams(first, second)
            else:
                self.modules(old.path, new.path)

    def streams(self, old: Stream, new: Stream) -> None:
        """Compare statements."""
        if old.tokens != new.tokens:
            pairs = zip(old.tokens, new.tokens, strict=False)
            at = next(
                (i for i, (x, y) in enumerate(pairs) if x != y),
                min(len(old.tokens), len(new.tokens)),
            )
            raise Different(self.old.place(old, at), self.new.place(new, at))
        places = [i for i, token in enumerate(old.tokens) if token is None]
        for at, one, other in zip(places, old.references, new.references, strict=True):
            if not self.are_same(one, other):
                raise Different(self.old.place(old, at), self.new.place(new, at))
        for stream, paths in zip((old, new), self.to_run, strict=True):
            paths += [one.path for one in stream.imported if isinstance(one, File)]

    def are_same(self, old: Reference, new: Reference) -> bool:
        """Whether two references can be paired; the pair is then compared."""
        if type(old) is not type(new):
            return False
        if isinstance(old, Everything):
            more = old.names_only and new.names_only
            return self.old.contents(names_only=more) == self.new.contents(names_only=more)
        if isinstance(old, Package):
            return self.packages(old, new)
        if old.path not in self.old.files:
            name = getattr(old, "name", "") == getattr(new, "name", "")
            return name and self.moved(old.path, new.path) and self.pair(old, new)
        if new.path not in self.new.files:
            return False
        constant = isinstance(old, Definition) and not {old.name, new.name} & self.reassigned
        if constant and self.old.code.is_constant(old) and self.new.code.is_constant(new):
            self.want(old, new)
            return True
        if not self.pair(old, new):
            return False
        self.want(old, new)
        return True

    def want(self, old: Reference, new: Reference) -> None:
        if (old, new) not in self.compared:
            self.compared.add((old, new))
            self.waiting.append((old, new))

    def pair(self, old: object, new: object) -> bool:
        return self.pairs.setdefault(old, new) == new and self.taken.setdefault(new, old) == old

    def moved(self, old: str, new: str) -> bool:
        """Whether a file outside of the comparison kept its path, or moved under the same name."""
        return old == new or (
            PurePosixPath(old).name == PurePosixPath(new).name
            and old not in self.new.tree.paths
            and new not in self.old.tree.paths
        )

    def modules(self, old: str, new: str) -> None:
        """Compare all definitions of two modules by name, as any attribute may be used."""
        self.to_run[0].append(old)
        self.to_run[1].append(new)
        first, second = (
            dict(_exports(program, path, self.words))
            for program, path in ((self.old, old), (self.new, new))
        )
        for name in sorted({*first, *second}):
            a, b = first.get(name), second.get(name)
            same = (
                a == b
                if isinstance(a, External) or isinstance(b, External)
                else a is not None and b is not None and self.are_same(a, b)
            )
            if not same:
                places = [
                    Place(path, 0, f"defines {name}" if target else f"defines no {name}")
                    for path, target in ((old, a), (new, b))
                ]
                raise Different(*places)

    def packages(self, old: Package, new: Package) -> bool:
        """Whether two packages contain the same components, of those that are compared."""
        if (old.one, old.by_text) != (new.one, new.by_text):
            return False
        had, has = self.old.tree.stems(old.dotted), self.new.tree.stems(new.dotted)
        if old.dotted != new.dotted:
            still = self.new.tree.stems(old.dotted)
            if not had & has or had & has & still:
                return False
        if not self.pair(Package(old.dotted), Package(new.dotted)):
            return False
        if old.one is not None:
            a, b = (f"{p.dotted.replace('.', '/')}/{p.one}.py" for p in (old, new))
            return self.are_same(File(a), File(b))
        listed, lists = self.old.listed(old.dotted), self.new.listed(new.dotted)
        chosen = listed & lists
        if ((listed or lists) and not chosen) or (listed - lists) & has:
            return False
        for stem in sorted(chosen):
            a, b = (f"{p.dotted.replace('.', '/')}/{stem}.py" for p in (old, new))
            reached = self.old.has_run(a) and self.new.has_run(b) and a != self.old.script
            if not (old.by_text and reached) and not self.are_same(File(a), File(b)):
                return False
        return True


def _exports(program: Program, path: str, words: Collection[str]) -> Iterator[tuple[str, Target]]:
    """The attributes of a module that may be used: its definitions, and imports in ``words``.

    Private definitions that it uses itself are left out: they are compared where it uses them.
    """
    module = program.tree.module(path)
    for name in module.names:
        target = program.tree.resolve(path, name)
        own = target == Definition(path, name)
        used = name.startswith("_") and name in module.read
        if (name in words and not isinstance(target, File)) or (own and not used):
            yield name, target


@dataclass(frozen=True, slots=True)
class Verdict:
    """``difference`` is None if two programs are the same; ``files`` are those with that code."""

    difference: Difference | None
    files: frozenset[tuple[str, str]]


def compare(old: Program, new: Program) -> Verdict:
    """Compare two programs, up to the first difference."""
    comparison = _Comparison(old, new)
    try:
        comparison.compare()
        _compare_others(old, new)
    except Different as found:
        return Verdict(found.difference, frozenset())
    pairs = comparison.pairs.items()
    found = {(a.path, b.path) for a, b in pairs if isinstance(a, Definition | File)}
    return Verdict(None, frozenset(found))


def _compare_others(old: Program, new: Program) -> None:
    """Require that files that are not Python have the same contents, at any path."""
    (had, before), (has, after) = (
        ({program.tree.read(path): path for path in sorted(paths)}, paths)
        for program in (old, new)
        for paths in [[p for p in program.files & program.tree.paths if not p.endswith(".py")]]
    )
    if {*had} != {*has} or len(before) != len(after):
        a = next((path for content, path in had.items() if content not in has), "")
        b = next((path for content, path in has.items() if content not in had), "")
        raise Different(*(Place(path, 0, "other contents") for path in (a or b, b or a)))
