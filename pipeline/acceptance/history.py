"""Finds the code that a stage ran on in git, by its hashes in dvc.lock."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.acceptance.modules import Tree
from pipeline.acceptance.programs import Code
from pipeline.workflow import git
from rrcm.cli.dvc_lock import tree
from rrcm.core.errors import StageError


class History:
    """Reads versions of the code from git, each once. A context manager of a git process."""

    def __init__(self) -> None:
        """Use the repository of the current folder."""
        self._blobs = git.Blobs()
        self._files: dict[str, dict[str, str]] = {}
        self._hashes: dict[str, str] = {}
        self._codes: dict[frozenset[tuple[str, str]], Code] = {}

    def __enter__(self) -> "History":
        """Start the git process."""
        self._blobs.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """End the git process."""
        self._blobs.__exit__()

    def find(
        self, recorded: Mapping[str, str], say: Callable[[str], None]
    ) -> tuple[Code, set[str]]:
        """The version of the code in which all paths have their recorded hashes.

        If no commit has them all, each path is taken from the newest commit that has it, and paths
        that are not recorded from the commit with the most matches.

        Args:
            recorded: DVC's hash of each file or folder of code that a stage ran on.
            say: Called with the progress of the search, commit by commit.

        Returns:
            The code, and those of its files that the stage depended on.

        Raises:
            StageError: Some of them were never committed, or this is no git repository.
        """
        base, most, sources = "", 0, {}
        for number, commit in enumerate(_commits([*recorded])):
            say(f"looking through the history: commit {number + 1}")
            found = [path for path, md5 in recorded.items() if self._hash(commit, path) == md5]
            if len(found) > most:
                base, most = commit, len(found)
            if len(found) == len(recorded):
                sources = dict.fromkeys(recorded, commit)
                break
            sources = dict.fromkeys(found, commit) | sources
        if missing := sorted({*recorded} - {*sources}):
            raise StageError(
                f"{missing[0]}: git has no commit with the version that it ran on"
                + (f", nor of {len(missing) - 1} more" if len(missing) > 1 else "")
            )
        files = {p: b for p, b in self._listing(base).items() if not _is_in(p, recorded)}
        listed = {
            path: blob
            for one, commit in sources.items()
            for path, blob in self._listing(commit).items()
            if _is_in(path, [one])
        }
        return self._code(files | listed), {*listed}

    def _code(self, files: Mapping[str, str]) -> Code:
        key = frozenset(files.items())
        if key not in self._codes:
            self._codes[key] = Code(Tree(files, lambda path: self._blobs[files[path]]))
        return self._codes[key]

    def _hash(self, commit: str, path: str) -> str:
        """DVC's hash of a file or folder in a commit; empty if the commit lacks it."""
        files = self._listing(commit)
        if path in files:
            return self._md5(files[path])
        inside = {
            name[len(path) + 1 :]: blob
            for name, blob in files.items()
            if name.startswith(f"{path}/")
        }
        return tree({name: self._md5(blob) for name, blob in inside.items()}) if inside else ""

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


def _commits(paths: Sequence[str]) -> Iterator[str]:
    """Commits that may contain the files, newest first: HEAD, and those that changed a file."""
    yield git.run("rev-parse", "HEAD")
    found = git.run("log", "--format=%H", "HEAD", "--", *paths).split()
    for commit in found:
        yield commit
        yield from (git.attempt("rev-parse", f"{commit}^@") or "").split()  # before a deletion


def _is_in(path: str, folders: Collection[str]) -> bool:
    return path in folders or any(path.startswith(f"{folder}/") for folder in folders)


def here() -> Code:
    """The current code of this checkout, committed or not."""
    names = git.run("ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    paths = {name for name in names if name and Path(name).is_file()}
    return Code(Tree(paths, lambda path: Path(path).read_bytes()))


def within(code: Code, paths: Collection[str]) -> set[str]:
    """The files of a version that are among ``paths``, or inside a folder among them."""
    return {path for path in code.tree.paths if _is_in(path, paths)}
