"""A miniature checkout in a folder of its own: the real graph on tests/mini.yaml."""

import fcntl
import hashlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ruamel.yaml import YAML

from pipeline.runtime import code

ROOT = Path(__file__).parents[2]
MINI, MORE = ROOT / "tests/mini.yaml", ROOT / "tests/mini-more.yaml"
FORKS = ROOT / "tests/support/forks.py"
RUN, EVAL = "tiny-rrcm-s050", "tiny-rrcm-s050-e050"


@dataclass(frozen=True)
class Workspace:
    """A checkout under test."""

    path: Path

    def environment(self, **more: str) -> dict[str, str]:
        """As in an activated environment, with this checkout's code, on one thread."""
        return os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.path),
            "OMP_NUM_THREADS": "1",
            **more,
        }

    def start(
        self, *command: str, output: int | IO[Any] = subprocess.PIPE, **environment: str
    ) -> subprocess.Popen[str]:
        """Start a command in a process group of its own."""
        return subprocess.Popen(
            command,
            cwd=self.path,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, fails: bool = False, **environment: str) -> str:
        """Run a command to its end; its output, standard error included."""
        process = self.start(*command, **environment)
        output, _ = process.communicate(timeout=900)
        assert (process.returncode != 0) == fails, output
        return output

    def stage(self, name: str, *, fails: bool = False, **environment: str) -> str:
        """Run the command of a stage as DVC would, and nothing of DVC's; its output."""
        command = ("python", "-m", f"pipeline.stages.{name.partition('@')[0]}")
        return self.run(*command, fails=fails, DVC_STAGE=name, **environment)

    def repro(self, *arguments: str, fails: bool = False, **environment: str) -> set[str]:
        """`dvc repro`; the stages whose command was run, but that which describes the code."""
        output = self.run("python", str(FORKS), "repro", *arguments, fails=fails, **environment)
        ran = {line.split("'")[1] for line in output.splitlines() if "Running stage" in line}
        return ran - {code.STAGE}

    def edit(self, change: Callable[[dict[str, Any]], None], file: str = "params.yaml") -> None:
        """Change params.yaml in place."""
        yaml = YAML()
        params = yaml.load(self.path / file)
        change(params)
        yaml.dump(params, self.path / file)

    def commit(self, message: str) -> None:
        """Give git everything that it does not ignore."""
        author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        self.run("git", "add", "--all")
        self.run("git", *author, "commit", "--quiet", "--message", message)

    def digest(self, pattern: str) -> dict[str, str]:
        """SHA-256 of the files that match."""
        return {
            str(file.relative_to(self.path)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(self.path.glob(pattern))
        }

    def clone(self, path: Path) -> "Workspace":
        """What git has of this checkout, somewhere else."""
        self.run("git", "clone", "--quiet", ".", str(path))
        return Workspace(path)

    def copy(self, path: Path) -> "Workspace":
        """This checkout, with its results and cache, somewhere else."""
        subprocess.run(["cp", "-a", self.path, path], check=True)  # faster than shutil
        return Workspace(path)


LEFT_OUT = ("dvc.lock", "metrics/", "presets/locks/", "release/")  # results of other parameters
CODE = ("rrcm", "pipeline", "tests")  # of these, files that are new to git are also meant
OF_USERS = ("data.dvc", ".dvc/config")  # written by `rrcm data` and `dvc remote`


def git(*arguments: str) -> str:
    """What git says of this repository, of which it may have no history but HEAD."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def committed(name: str) -> str:
    """A file as HEAD has it: users change params.yaml, dvc.lock and others in their work."""
    return git("show", f"HEAD:{name}")


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows, of globs; users have others beside them."""
    names = git("ls-files", "-z", *(f":(glob){pattern}" for pattern in patterns)).split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def shell(page: str, kinds: str = "console|sh") -> Iterator[list[str]]:
    """The commands in the console and sh blocks of a page, or of other ``kinds``, as words."""
    for kind, block in re.findall(rf"^```({kinds})\n(.*?)```", page, re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            if kind == "sh" or line.startswith("$ "):
                words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
                words.whitespace_split = True
                for more, command in itertools.groupby(words, lambda word: not {*word} <= {*"&|;"}):
                    if more:
                        yield [*command]


def create(path: Path) -> Workspace:
    """A committed checkout of the code as it is now, its params.yaml the miniature.

    Without results in git, which are half of its files: tests copy it a hundred times.
    """
    new = git("ls-files", "--others", "--exclude-standard", "-z", *CODE).split("\0")
    for source in (*tracked("**"), *(ROOT / name for name in new if name)):
        name = source.relative_to(ROOT).as_posix()
        if not name.startswith(LEFT_OUT):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path / name)
    for name in OF_USERS:
        (path / name).write_text(committed(name))
    shutil.copyfile(MINI, path / "params.yaml")
    workspace = Workspace(path)
    workspace.run("git", "init", "--quiet")
    workspace.run("dvc", "repro", "--quiet", code.STAGE)  # as the code is now, committed or not
    workspace.commit("checkout")
    workspace.run("git", "gc", "--quiet")  # objects in one file, not in as many as all others
    return workspace


def add(params: dict[str, Any]) -> None:
    """Give the miniature's parameters what tests/mini-more.yaml has, too."""
    for section, entries in YAML(typ="safe").load(MORE).items():
        params[section].update(entries)


def once(path: Path, make: Callable[[Path], object]) -> Workspace:
    """A checkout that ``make`` makes once, however many test processes ask for it."""
    done = path.with_suffix(".done")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(path)
            done.touch()
    return Workspace(path)


def finish(path: Path) -> None:
    """A checkout after `dvc repro`."""
    workspace = create(path)
    workspace.run("rrcm", "data", "digits")
    workspace.repro()


def extend(finished: Workspace, path: Path) -> None:
    """The same with a stage of every kind; nothing that was there runs again."""
    both, densepure = "tiny-both-s050", "tiny-densepure-s050"
    stages = {"denoise@tiny", "denoise@told", "generate@told", "represent@tiny", "report"}
    stages |= {"member@first", "member@second", f"combine@{both}", f"purify@{densepure}"}
    stages |= {f"{stage}@both" for stage in ("sample", "certify")}
    stages |= {f"{stage}@densepure" for stage in ("sample", "certify")}
    workspace = finished.copy(path)
    workspace.edit(add)
    assert workspace.repro() == stages
