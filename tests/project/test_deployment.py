"""deploy/: what its files start exists, its scripts do what they say, and it holds no secret."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import understood
from dvc.cli.parser import get_main_parser
from ruamel.yaml import YAML
from torch.distributed.run import get_args_parser
from workspace import ROOT, Workspace, committed

DEPLOY = ROOT / "deploy"
COMPOSE = YAML(typ="safe").load(DEPLOY / "compose.yaml")
SERVICES: dict[str, dict] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
PAGE = (ROOT / "docs/deployment.md").read_text()
SECRET = re.compile(r"PASSWORD|SECRET|AUTH|KEY|TOKEN")
GIVEN = re.compile(r"\$\{(\w+)(:[?-][^}]*)?\}")
SET = {  # what compose.yaml asks for
    *("RRCM_DATABASE_PASSWORD", "RRCM_PREFECT_SECRET", "RRCM_REPOSITORY"),
    *("RRCM_STORE_KEY", "RRCM_STORE_SECRET"),
}


def run(
    *command: str | Path, cwd: Path, fails: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done


def test_scripts_are_bash_and_can_be_started():
    for path in (*DEPLOY.glob("**/*.sh"), *DEPLOY.glob("**/*.sbatch")):
        run("bash", "-n", path, cwd=ROOT)
        assert path.stat().st_mode & 0o111 == 0o111
        assert path.read_text().startswith("#!/usr/bin/env bash\n")
        assert "\nset -euo pipefail\n" in path.read_text()


# --- Slurm


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A checkout whose srun starts a step of two nodes; what they start tells of itself."""
    shutil.copytree(DEPLOY / "slurm", tmp_path / "deploy/slurm")
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    scripts = {
        "scontrol": 'test "$*" = "show hostnames n[1-2]" && printf "n1\\nn2\\n"',
        "srun": 'printf "%s\\n" "$@" > srun.txt; shift 3\n'
        'SLURM_NODEID=1 "$@" & other=$!; SLURM_NODEID=0 "$@" || exit; wait $other',
        "rrcm": 'printf "%s\\n" "$RRCM_TORCHRUN" "$@" > first.txt; until [ -e second.txt ]; do '
        "sleep 0.1; done",
        "torchrun": 'printf "%s\\n" "$DVC_STAGE" "$@" > second.txt',
    }
    for name, text in scripts.items():
        (binaries / name).write_text(f"#!/bin/sh\n{text}\n")
        (binaries / name).chmod(0o755)
    return tmp_path


JOB = {"SLURM_JOB_ID": "41007", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
ENDED = ".rrcm/slurm-41007.ended"


def test_slurm_trains_on_two_nodes_as_the_page_on_training_says(cluster: Path):
    path = f"{cluster}/.venv/bin:{os.environ['PATH']}"
    given = JOB | {"SLURM_GPUS_ON_NODE": "8", "PATH": path}
    run("deploy/slurm/train.sbatch", "pretrain@b", cwd=cluster, **given)
    where, *asked = (cluster / "first.txt").read_text().splitlines()
    stage, *joined = (cluster / "second.txt").read_text().splitlines()
    parser = get_args_parser()
    first = parser.parse_args([*shlex.split(where), "-m", "pipeline.stages.pretrain"])
    second = parser.parse_args(joined)

    assert asked == ["repro", "--single-item", "pretrain@b"]
    understood(asked)
    get_main_parser().parse_args(asked)  # whose options `rrcm repro` takes
    assert (
        stage == "pretrain@b"
        and second.module
        and first.training_script == (second.training_script)
    )
    assert (ROOT / second.training_script.replace(".", "/")).with_suffix(".py").is_file()
    assert (first.node_rank, second.node_rank) == (0, 1)
    for each in (first, second):
        assert (each.nnodes, each.nproc_per_node) == ("2", "8")
        assert (each.master_addr, each.master_port) == ("n1", 21007)
        assert each.rdzv_conf == "timeout=3600"
    page = (ROOT / "docs/training.md").read_text()
    options = set(re.findall(r"--[a-z-]+", page.partition('RRCM_TORCHRUN="')[2].partition('"')[0]))
    assert options == {*re.findall(r"--[a-z-]+", where)} - {"--rdzv-conf"}
    assert (cluster / "srun.txt").read_text().splitlines() == [
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        "--wait=0",
        "deploy/slurm/node.sh",
        "pretrain@b",
    ]
    assert not (cluster / ENDED).exists()


def node(cluster: Path, number: int, program: str, text: str) -> subprocess.Popen[str]:
    """Start a node whose rrcm or torchrun does ``text``, in a process group of its own."""
    (cluster / ".venv/bin" / program).write_text(f"#!/bin/sh\n{text}\n")
    (cluster / ".rrcm").mkdir(exist_ok=True)
    given = JOB | {"SLURM_NODEID": str(number), "SLURM_GPUS_ON_NODE": "1", "RRCM_ENDED": ENDED}
    given |= {"RRCM_MASTER": "n1", "RRCM_PORT": "21007"}
    command = ["deploy/slurm/node.sh", "pretrain@b"]
    return subprocess.Popen(command, cwd=cluster, env=os.environ | given, start_new_session=True)


def test_a_node_ends_after_the_first_one(cluster: Path):
    """Else srun could end the first one while DVC records the result."""
    other = node(cluster, 1, "torchrun", "exec sleep 60")  # waits for what never begins
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(1)
    assert node(cluster, 0, "rrcm", "exit 0").wait(20) == 0

    assert other.wait(20) == 0 and (cluster / ENDED).exists()
    (cluster / ENDED).unlink()
    assert node(cluster, 1, "torchrun", "exit 3").wait(20) == 3  # and one that fails at once
    assert not (cluster / ENDED).exists()
    assert node(cluster, 0, "rrcm", "exit 4").wait(20) == 4


def test_nodes_that_are_stopped_wait_for_what_saves(cluster: Path):
    """As Slurm stops them before a job's time is over: all of their processes get SIGTERM."""
    other = node(cluster, 1, "torchrun", "touch up1; exec sleep 60")
    saves = "trap 'sleep 2; touch saved; exit 1' TERM; touch up0; sleep 60 & wait"
    first = node(cluster, 0, "rrcm", saves)
    while not all((cluster / name).exists() for name in ("up0", "up1")):
        time.sleep(0.05)
    for process in (other, first):
        os.killpg(process.pid, signal.SIGTERM)

    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(1)
    assert first.wait(20) == 1 and (cluster / "saved").exists()
    assert other.wait(20) == 0


# --- workers


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with DVC, whose cli.py tells how it was started."""
    folder = tmp_path / "origin"
    (folder / ".dvc").mkdir(parents=True)
    for name in (".dvc/config", ".dvc/.gitignore"):
        (folder / name).write_text(committed(name))
    (folder / "cli.py").write_text(
        "import os, sys; print(os.getcwd(), os.environ['PYTHONPATH'], *sys.argv[1:])\n"
    )
    run("git", "init", "--quiet", cwd=folder)
    Workspace(folder).commit("all")
    return folder


def test_a_worker_makes_its_clone_once_and_knows_the_store(repository: Path, tmp_path: Path):
    clone = tmp_path / "clone"
    given = {
        "RRCM_REPOSITORY": str(repository),
        "RRCM_CLONE": str(clone),
        "RRCM_STORE": "s3://rrcm/dvc",
        "RRCM_STORE_ENDPOINT": "http://store:8333",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    first = run(DEPLOY / "worker.sh", "worker", "--queue", "flows", cwd=tmp_path, **given).stdout
    (clone / "kept").touch()  # of another start
    again = run(DEPLOY / "worker.sh", "worker", "--queue", "flows", cwd=tmp_path, **given).stdout

    assert first == again == f"{clone} {clone} flow worker --queue flows\n"
    assert (clone / "kept").exists() and not (tmp_path / "clone.part").exists()
    dvc = (sys.executable, "-m", "dvc", "config")
    assert run(*dvc, "core.remote", cwd=clone).stdout == "deployed\n"
    assert run(*dvc, "remote.deployed.url", cwd=clone).stdout == "s3://rrcm/dvc\n"
    assert run(*dvc, "remote.deployed.endpointurl", cwd=clone).stdout == "http://store:8333\n"
    changed = run("git", "status", "--porcelain", cwd=clone).stdout
    assert changed == "?? kept\n"  # a worker refuses a clone with edits
    given |= {"RRCM_REPOSITORY": "", "RRCM_CLONE": str(tmp_path / "another")}
    said = run(DEPLOY / "worker.sh", "worker", cwd=tmp_path, fails=True, **given).stderr
    assert "RRCM_REPOSITORY: is not set: the address of the git repository" in said
    assert not (tmp_path / "another").exists()


# --- compose.yaml


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_starts_exists(name: str):
    command = list(map(str, SERVICES[name].get("command", ())))
    match command:
        case ["/opt/rrcm/deploy/worker.sh", *words]:
            understood(["flow", *words])
        case ["rrcm", *words]:
            understood(words)
        case ["prefect", *words]:
            plain = [word for word in words if word[0] != "-"][:2]
            said = run(sys.executable, "-m", "prefect", *plain, "--help", cwd=ROOT).stdout
            assert {word for word in words if word.startswith("--")} <= {
                *re.findall(r"--[a-z-]+", said)
            }
        case _:  # of other people's images
            assert name in ("database", "store")


def test_services_name_what_is_declared_and_share_no_clone():
    """A coordinator would wait for ever for a worker of its own clone."""
    volumes = [v.partition(":")[0] for one in SERVICES.values() for v in one.get("volumes", ())]
    for service in SERVICES.values():
        image = GIVEN.sub(lambda found: found[2].removeprefix(":-"), service["image"])
        assert re.search(r":[\w.-]*(\d|cuda)", image) and "latest" not in image
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[needed]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))

    assert sorted(volumes) == sorted(COMPOSE["volumes"])


def test_secrets_come_from_outside():
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if SECRET.search(key):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), (name, key)
    text = (DEPLOY / "compose.yaml").read_text()
    demanded = {found[1] for found in GIVEN.finditer(text) if found[2].startswith(":?")}
    assert demanded == SET
    assert all(f"`{found[1]}`" in PAGE for found in GIVEN.finditer(text))


# --- the image


def test_the_image_is_built_from_what_is_sent_to_it(tmp_path: Path):
    """Its own copies are enough for `make env` to plan, and for the package to be built."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and line[0] != "#"]
    sent = {line[1:] for line in patterns if line[0] == "!"}
    copied = re.findall(r"^COPY --chown=rrcm (.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = [name for names in copied for name in names.split() if name != "."]

    assert patterns[0] == "*" and all((ROOT / name).exists() for name in sent)
    for name in sources:
        assert name in sent or Path(name).parts[0] in sent, name
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (command,) = re.findall(r"^RUN (make env .*)$", DOCKERFILE, re.MULTILINE)
    words = shlex.split(command.replace("$LOCK", "requirements-gpu.lock"))
    assert "--require-hashes" in run(*words, "--dry-run", cwd=tmp_path).stdout
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", ".")
    run(sys.executable, "-m", "pip", "wheel", *options, cwd=tmp_path)
    assert [*tmp_path.glob("wheels/rrcm-*.whl")]


def test_the_image_is_pinned_and_no_root():
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    (python,) = re.findall(r"^PYTHON \?= (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (uid,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)

    assert len(bases) == 1 and re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])
    assert python.replace("python", "python:") in bases[0] and f"PYTHON={python}" in DOCKERFILE
    assert uid != "0" and f"--uid {uid} rrcm" in DOCKERFILE
    for lock in re.findall(r"LOCK=(\S+)", DOCKERFILE):
        assert lock == '"$LOCK"' or (ROOT / lock).is_file()
    assert not SECRET.search(DOCKERFILE)
