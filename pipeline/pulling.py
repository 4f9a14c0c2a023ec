"""``rrcm pull``: what a run, an evaluation or a pre-training left, from a DVC remote, by its name.

The short way to ``dvc pull`` of just these files. DVC moves them; here names become paths, and what
DVC says of a failure becomes one line. Whatever it was, files that arrived are kept, dvc.lock is
not touched, and the same command goes on.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
from collections.abc import Collection, Mapping

from pipeline.checked import load
from pipeline.flow import lockfile
from rrcm.errors import ConfigError, DataError, RrcmError, StageError, one_line
from rrcm.params import Params
from rrcm.registry import suggest

COMPLAINT = re.compile(rb"(?:\x1b\[\d*m)?(?:ERROR|WARNING)(?:\x1b\[\d*m)?:")
ERASE = b"\r\x1b[K"  # the error takes the place of the bar
OBJECTS = "/files/md5"  # where in a remote DVC keeps what it names by hash


def pull(names: list[str], *, remote: str | None) -> str:
    """Bring what ``names`` stand for into this checkout; says what came and what can be done now.

    Raises:
        ConfigError: params.yaml has no such name, or DVC no such remote.
        StageError: Nobody has made it at this commit.
        DataError: The remote cannot be reached, or does not have it.
    """
    params, made = load(), _outputs()
    paths = {path for name in names for path in wanted(name, params, made)}
    counted = _pulled({path: made[path] for path in sorted(paths)}, remote)
    lines = [f"{', '.join(names)}: {counted}"]
    for name in names:
        if run := params.classifiers().get(name):
            asked = f"--model {run.model} --method {run.method} --sigma {run.sigma:g}"
            if name in params.ensembles:
                asked = f"--model {name} --sigma {run.sigma:g}"
            lines.append(f"`rrcm certify {asked}` certifies it")
    return "\n".join(lines)


def wanted(name: str, params: Params, made: Collection[str]) -> list[str]:
    """The outputs that ``name`` stands for, of those that dvc.lock knows: ``made``.

    A run: what `rrcm certify` reads, and the votes and certificates of its evaluations, if any. An
    evaluation: its votes and certificates. A pre-training: its encoder. A denoiser: its network.
    ``report``: the page.

    Raises:
        ConfigError: The name is none of these.
        StageError: dvc.lock does not know what has to be there.
    """
    runs = params.classifiers()
    known = [*runs, *params.evals, *params.pretrain, *params.denoisers, "report"]
    if name not in known:
        raise ConfigError(
            f"{name}: params.yaml has no run, evaluation, pre-training or denoiser of this name."
            f"{suggest(name, known)} Its runs are {', '.join(runs)}"
        )
    needed: dict[str, str] = {}  # path -> the stage that makes it
    if name in runs:
        needed[f"onnx/{name}.onnx"] = params.maker(name)
        needed[f"shards/{params.sample.split}"] = "shard"
        if params.sample.precision == "int8":
            needed["shards/validation"] = "shard"
    if name in params.evals:
        needed |= {path: f"certify@{name}" for path in _results(name)}
    if name in params.pretrain:
        needed[f"pretrained/{name}/encoder.safetensors"] = f"pretrain@{name}"
    if name in params.denoisers:
        for file in ("config.json", "model.safetensors"):
            needed[f"denoisers/{name}/{file}"] = f"denoise@{name}"
    if name == "report":
        needed["report"] = "report"
    for path, stage in needed.items():
        if path not in made:
            raise StageError(
                f"{name}: dvc.lock has no {path}, so that nobody has made it at this commit; "
                f"`dvc repro {stage}` does"
            )
    more = [path for path in made if path.startswith((f"models/{name}/", f"pretrained/{name}/"))]
    more += [p for k, e in params.evals.items() if e.run == name for p in _results(k) if p in made]
    return sorted({*needed, *more})


def _results(evaluation: str) -> tuple[str, str]:
    return f"votes/{evaluation}.jsonl", f"certificates/{evaluation}.csv"


def _outputs() -> dict[str, str]:
    """Every output that dvc.lock knows, and its hash."""
    stages = lockfile.read().get("stages", {}).values()
    return {out["path"]: out.get("md5", "") for stage in stages for out in stage.get("outs", [])}


def _pulled(made: Mapping[str, str], remote: str | None) -> str:
    """Have DVC pull what was ``made``, its bars on the terminal, if this is one; what it counted.

    Raises:
        ConfigError: There is no such remote.
        DataError: DVC could not do it.
    """
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "pull"]
    command += ["--remote", remote, *made] if remote else made
    terminal = sys.stderr.isatty()
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:  # DVC shows bars to a terminal only, and as wide as it is
        termios.tcsetwinsize(theirs, termios.tcgetwinsize(sys.stderr.fileno()))
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as answer,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=answer, stderr=theirs
        ) as process,
    ):
        os.close(theirs)
        said = _relayed(ours, shown=terminal)
        failed = process.wait() != 0
        answer.seek(0)
        counted = answer.read().strip().splitlines()
    if failed:
        raise reason(said, made, remote=remote)
    return counted[-1] if counted else "nothing to do"


def _relayed(ours: int, *, shown: bool) -> str:
    """All that is written to the other end of ``ours``; shown as it comes, up to a complaint."""
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
            if shown:
                complaint = COMPLAINT.search(chunk)
                bar = chunk[: complaint.start()] + ERASE if complaint else chunk
                sys.stderr.buffer.write(bar)
                sys.stderr.buffer.flush()
                shown = not complaint
    except OSError:
        pass  # how a terminal without another end says that there is no more
    finally:
        os.close(ours)
    text = said.decode(errors="replace").replace("\r\n", "\n")
    return re.sub(r"\x1b\[\d*[A-Za-z]", "", text)


def reason(said: str, made: Mapping[str, str], *, remote: str | None) -> RrcmError:
    """What a failed ``dvc pull`` of ``made`` said, as an error of one line with the way out."""
    if found := re.search(r"remote '([^']+)' doesn't exist", said):
        return ConfigError(f"--remote {found[1]}: no such remote; `dvc remote list` shows them")
    if found := re.search(r"failed to connect to (\w+) \((.*?)\) - (.*)", said):
        url = f"{found[1]}://{found[2].removesuffix(OBJECTS)}"
        return DataError(f"the remote {url} cannot be reached: {_line(found[3])}")
    if found := re.findall(r"failed to transfer '(\w+)(?:\.dir)?' - ([^\n]*)", said):
        names = {md5.removesuffix(".dir"): path for path, md5 in made.items()}
        files = ", ".join(sorted({names.get(md5, md5) for md5, _ in found}))
        why = _line(found[0][1].partition(": '")[0])  # without the names that DVC gives files
        return DataError(f"{files}: {why}; what arrived is kept, and the same command goes on")
    if found := re.search(r"unsaved files without confirmation.*\n((?:.*\S.*\n?)+)", said):
        files = ", ".join(sorted(os.path.relpath(line) for line in found[1].splitlines()))
        return DataError(f"{files}: edited here; `dvc pull --force` replaces it, or remove it")
    missing = re.search(r"failed for following targets:\n(.*?)\nIs your cache", said, re.DOTALL)
    if not missing:
        told = "; ".join(re.findall(r"ERROR: (.*)", said)) or said
        return DataError(f"dvc pull: {_line(told)}; the same command goes on")
    files = ", ".join(missing[1].splitlines())
    if "No remote provided" in said:
        return DataError(
            f"{files}: not in the cache, and this checkout has no default remote; add one with "
            "`dvc remote add --default NAME URL`, or name one with --remote"
        )
    place = f"the remote {remote}" if remote else "the default remote"
    return DataError(
        f"{files}: {place} does not have it, or not whole; `dvc push` where it was made sends it"
    )


def _line(text: str) -> str:
    return one_line(Exception(text))
