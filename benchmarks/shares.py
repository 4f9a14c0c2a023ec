"""How much faster votes are drawn in shares: ``python -m benchmarks.shares [--draws N]``.

On a machine of two cores: one process, two processes of `rrcm repro --shares 2`, and four slots
in two clones, that is hosts of one core each, under `rrcm flow run --hosts --shares 4`. Processes
have one thread. All draw the same votes of a small network, and must have the same bytes. Times are
of whole commands, with all that DVC, Prefect and the remote take. As on hosts, server and workers
run before, and each clone has classified an image before. As the server shares the two cores, its
processor time is printed, too.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.drills.hosts import EVAL, RUN, SAMPLE, TRAIN, Team
from pipeline.workflow.flow.environment import POOL
from rrcm.core.files import sha256

# isort: split
from survivors import until  # on the path since `hosts` was imported
from workspace import Workspace

EXPORT = f"export@{RUN}"
VOTES = f"votes/{EVAL}.jsonl"
# Drills save, send and report more often.
USUAL = {"RRCM_MOVE_SECONDS": "600", "RRCM_SAVE_SECONDS": "5", "RRCM_SILENCE_SECONDS": "180"}
ONE = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draws", type=int, default=400_000, help="of each of 20 images")
    options.add_argument("--only", choices=("two", "four"), help="beside one process")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="rrcm-shares-") as folder:
        team = Team(Path(folder), n=asked.draws, epochs=1)
        first = Workspace(team.folder / "first")
        first.run("dvc", "repro", EXPORT)
        first.run("dvc", "push")
        first.commit("a network to sample")
        first.run("git", "push", "--quiet", str(team.folder / "origin"), "HEAD")
        rows = [
            ("one process", lambda: alone(team)),
            *([("two processes", lambda: two(team))] if asked.only != "four" else []),
            *([("four slots in two clones", lambda: four(team))] if asked.only != "two" else []),
        ]
        print(f"{asked.draws:,} draws of 20 images, {os.cpu_count()} cores\n")
        print("| votes by | seconds | times as fast | same bytes |\n| --- | ---: | ---: | --- |")
        base, wanted = 0.0, ""
        for name, draw in rows:
            seconds, made = draw()
            base, wanted = base or seconds, wanted or made
            same = "yes" if made == wanted else "**no**"
            print(f"| {name} | {seconds:.0f} | {base / seconds:.2f} | {same} |", flush=True)
        team.close()


def alone(team: Team) -> tuple[float, str]:
    """Seconds and votes of one process."""
    return timed(ready(team, "one"), "rrcm", "repro", SAMPLE)


def two(team: Team) -> tuple[float, str]:
    """Seconds and votes of two processes."""
    slots = {"RRCM_SLOTS": "2", "RRCM_SLOTS_DIR": str(team.folder / "slots-two")}
    command = ("rrcm", "repro", "--jobs", "2", "--shares", "2", SAMPLE)
    return timed(ready(team, "two"), *command, **slots)


def four(team: Team) -> tuple[float, str]:
    """Seconds and votes of two workers, each with two slots."""
    team.serve()
    for name in ("host-a", "host-b"):
        ready(team, name)
        team.work(name, RRCM_SLOTS="2", **ONE, **USUAL)
    until(lambda: online(team) == 2, seconds=300)
    before = processor_time(team)
    command = ("rrcm", "flow", "run", "--hosts", "--shares", "4", SAMPLE)
    coordinator, after = ready(team, "second"), ("dvc", "pull", VOTES)
    seconds, made = timed(coordinator, *command, after=after, **team.service.client)
    share = (processor_time(team) - before) / seconds
    print(f"the server took {100 * share:.1f} % of a core", file=sys.stderr)
    return seconds, made


def processor_time(team: Team) -> float:
    """Seconds of processor time of the server so far, with its worker for flows."""
    up = psutil.Process(team.service.process.pid)
    times = [process.cpu_times() for process in (up, *up.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def online(team: Team) -> int:
    """Workers of stages that ask the server for work."""
    known = team.service.ask(f"work_pools/{POOL}/workers/filter", {})
    hosts = [worker for worker in known if "-host-" in worker["name"]]
    return sum(worker["status"] == "ONLINE" for worker in hosts)


def ready(team: Team, name: str) -> Workspace:
    """A clone that was used before, with the network and the images."""
    clone = team.clones.clone(name)
    clone.run("dvc", "pull", "data", "shard", TRAIN, EXPORT)
    clone.run(*"rrcm predict --model tiny --method gaussian --sigma 0.5 --image 16".split(), **ONE)
    return clone


def timed(
    clone: Workspace, *command: str, after: tuple[str, ...] = (), **environment: str
) -> tuple[float, str]:
    """Seconds of a command, and the SHA-256 of the votes that it made."""
    began = time.monotonic()
    process = clone.start(*command, **ONE, **environment)
    said, _ = process.communicate()
    seconds = time.monotonic() - began
    if process.returncode:
        sys.exit(said)
    if after:
        clone.run(*after)
    return seconds, sha256(clone.path / VOTES)


if __name__ == "__main__":
    main()
