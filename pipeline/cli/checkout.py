"""What the commands of rrcm ask of a checkout: its classifiers, evaluations and settings."""

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pipeline import checked
from pipeline.project import runs
from pipeline.project.runs import Trained
from rrcm.cli.app import say, seen
from rrcm.cli.options import Options
from rrcm.cli.project import ABSENT, OK, WRONG, Described, Finding, Project
from rrcm.cli.requests import Request, Settings
from rrcm.config.certification import Certify
from rrcm.config.sections import PARAMS
from rrcm.core.errors import RrcmError, StageError

if TYPE_CHECKING:  # pandas takes a while
    from rrcm.analysis.entries import Entry
    from rrcm.certification.votes.records import Header


def enter() -> Path:
    """Make the checkout around the current folder the current one, as git does; return the latter.

    Nothing changes in a folder that has a params.yaml, or that lies in no checkout.
    """
    here = Path.cwd()
    if not PARAMS.exists():
        for folder in here.parents:
            if (folder / PARAMS).is_file() and (folder / "dvc.yaml").is_file():
                os.chdir(folder)
                say(f"note: at work in the checkout {folder}", err=True)
                break
    return here


def needs_git() -> None:
    """Refuse a checkout without a history, such as an unpacked archive of one.

    Raises:
        StageError: It has no repository of its own, and its DVC is not told to do without.
    """
    config = Path(".dvc/config")
    told = config.exists() and "no_scm" in config.read_text()
    if PARAMS.exists() and not Path(".git").exists() and not told:
        raise StageError(
            f"{Path.cwd()} is no git repository, which DVC needs: clone rrcm, or here run "
            "`git init && git add --all && git commit --message start`"
        )


def given(context: typer.Context, path: Path | None) -> Path | None:
    """The callback of a path of a command that runs in the checkout, which is entered before."""
    return path if path is None else seen(path, context.obj)


@dataclasses.dataclass(frozen=True)
class Checkout(Project):
    """The checkout around the current folder; ``commands`` are what it adds to `rrcm`."""

    commands: typer.Typer

    def settings(self) -> Settings:
        """Return those of params.yaml, where there is one."""
        if not PARAMS.exists():
            return Settings()
        params = checked.load()
        return Settings(
            sample=params.sampling,
            stopping=params.stopping,
            certificates=params.certify.certificates,
            report=params.report,
        )

    def require(self, request: Request) -> None:
        """Refuse settings that params.yaml could not have."""
        if PARAMS.exists():
            params, sample = checked.load(), request.sample
            dataclasses.replace(
                params,
                sample=sample,
                stopping=params.stopping | {sample.stop: sample.stopping},
                certify=Certify(certificates=request.certificates, alpha=sample.alpha),
                report=request.report or params.report,
            )

    def classifier(self, options: Options) -> Trained:
        """Return the run that --model, --method and --sigma mean, of the checkout around."""
        enter()
        return runs.trained(checked.load(), options)

    def described(self, header: "Header") -> Described:
        """Describe the classifier of votes by its file, beside params.yaml."""
        from pipeline.project.stale import Present

        return Present().classifier(header)

    def evaluation(self, name: str) -> "Entry":
        """Return the certificates of an evaluation of params.yaml."""
        from pipeline.project import results

        enter()
        return results.evaluation(name)

    def remarks(self, entries: "Sequence[Entry]") -> list[str]:
        """Return a line for all evaluations that are out of date for the same reasons."""
        from pipeline.project import differences

        return differences.lines([(one.name, one.stale) for one in entries])

    def report(self, *, only: Sequence[str], out: Path | None) -> str:
        """Return the table of the evaluations of params.yaml, and write their page to ``out``."""
        from pipeline.project import results

        here = enter()
        return results.overview(only, out=out and seen(out, here))

    def findings(self) -> list[Finding]:
        """Return which tools, data and classifiers are here."""
        lines = []
        for tool in ("git", "dvc"):
            place = shutil.which(tool)
            cure = "not on PATH; activate .venv, or install it"
            lines.append((OK, f"{tool}: {place}") if place else (WRONG, f"{tool}: {cure}"))
        try:
            params = checked.load()
        except RrcmError as error:  # classifiers trained elsewhere need no params.yaml
            return [*lines, (WRONG if PARAMS.exists() else ABSENT, str(error))]
        counts = f"{len(params.runs)} runs, {len(params.evals)} evaluations"
        lines.append((OK, f"{PARAMS}: {counts}"))
        data = params.data.name.replace("_", "-")
        wanted = {Path("data"): ("raw data in data/", f"`rrcm data {data}`")}
        for run in params.classifiers():
            file = Path(f"onnx/{run}.onnx")
            wanted[file] = (str(file), f"`rrcm repro {params.maker(run)}`")
        for path, (what, way) in wanted.items():
            there = path.exists()
            lines.append((OK, what) if there else (ABSENT, f"{what}: not here; {way}"))
        return lines
