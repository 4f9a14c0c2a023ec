"""Remotes: what is pushed in one clone is what another one pulls, whatever happens in between."""

import hashlib
import re
import shutil
from collections.abc import Iterator

import pytest
from objectstore import BUCKET, IMPATIENT, KEYS, Gate, Store, serving
from ruamel.yaml import YAML
from workspace import EVAL, RUN, Workspace

OF_RUN = [
    *("shards/test", f"onnx/{RUN}.onnx", f"votes/{EVAL}.jsonl", f"certificates/{EVAL}.csv"),
    *(f"models/{RUN}/{file}" for file in ("config.json", "model.safetensors", "log.csv")),
]
LARGE = ("bash", "-c", 'ulimit -S -f 700; exec "$@"', "-")  # no file may grow beyond 700 KiB


def lock(checkout: Workspace) -> dict[str, str]:
    """Output -> hash, as dvc.lock has them."""
    stages = YAML(typ="safe", pure=True).load(checkout.path / "dvc.lock")["stages"].values()
    return {out["path"]: out["md5"] for stage in stages for out in stage["outs"]}


def cached(checkout: Workspace) -> set[str]:
    """The objects of a checkout's cache by hash, but for those of folders."""
    found = (checkout.path / ".dvc/cache/files/md5").glob("??/[0-9a-f]*")
    return {f.parent.name + f.name for f in found if f.suffix != ".dir"}


def contents(checkout: Workspace, *paths: str) -> set[str]:
    """MD5 of the files at these places."""
    places = [checkout.path / path for path in paths]
    files = [f for p in places for f in (p.rglob("*") if p.is_dir() else [p]) if f.is_file()]
    return {hashlib.md5(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def origin(finished: Workspace, tmp_path_factory) -> Workspace:
    """A finished checkout, committed, and pushed to the folder that is its remote."""
    folder = tmp_path_factory.mktemp("remotes")
    origin = finished.copy(folder / "the origin")
    origin.run("dvc", "remote", "add", "--default", "store", f"{folder}/store")
    origin.commit("results")
    origin.run("dvc", "push")
    return origin


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with serving() as store:
        yield store


def s3(checkout: Workspace, port: int, prefix: str) -> None:
    """Make a bucket the default remote of this checkout alone."""
    config = f"[core]\n    remote = s3\n['remote \"s3\"']\n    url = s3://{BUCKET}/{prefix}\n"
    config += f"    endpointurl = http://127.0.0.1:{port}\n"
    (checkout.path / ".dvc/config.local").write_text(config)


def test_over_s3_a_clone_certifies_a_run_without_training(origin: Workspace, store, tmp_path):
    """It pulls the run's files and no others, and draws the votes that the graph drew."""
    clone = origin.clone(tmp_path / "clone")
    for checkout in (origin, clone):
        s3(checkout, store.port, "all")

    origin.run("dvc", "push", **KEYS)
    said = clone.run("rrcm", "pull", RUN, **KEYS)

    of_run = contents(origin, *OF_RUN)
    assert cached(clone) == of_run and len(store.objects("all/")) > 3 * len(of_run)
    assert contents(clone, *OF_RUN) == of_run and "`rrcm certify --model tiny" in said
    (clone.path / f"votes/{EVAL}.jsonl").unlink()
    drawn = clone.run("rrcm", "certify", "--model", "tiny", "--sigma", "0.5")
    (ours,) = clone.path.glob("results/*.csv")
    assert "votes: .rrcm/votes/" in drawn
    assert ours.read_bytes() == (origin.path / f"certificates/{EVAL}.csv").read_bytes()
    clone.run("dvc", "pull", **KEYS)
    assert contents(clone, *lock(clone)) == contents(origin, *lock(origin))
    assert clone.run("git", "status", "--short") == ""


@pytest.mark.slow
def test_a_folder_holds_one_checkpoint_or_all(origin: Workspace, tmp_path):
    """What it does not hold is named, and what it does is there all the same."""
    clone, path, store = origin.clone(tmp_path / "clone"), f"onnx/{RUN}.onnx", tmp_path / "store"
    clone.run("dvc", "remote", "add", "--local", "other", str(store))
    shutil.copyfile(clone.path / ".dvc/config.local", origin.path / ".dvc/config.local")

    origin.run("dvc", "push", "--remote", "other", path)
    assert len([file for file in store.rglob("*") if file.is_file()]) == 1
    missing = clone.run("rrcm", "pull", RUN, "--remote", "other", fails=True)
    assert missing.startswith("error: ") and len(missing.splitlines()) == 1
    assert "shards/test" in missing and path not in missing and "the remote other" in missing
    assert contents(clone, path) == contents(origin, path)
    (clone.path / path).unlink()
    told = clone.run("rrcm", "pull", "--remote", "other")
    assert "outputs of dvc.lock are here" in told and "md5" not in told
    assert contents(clone, path) == contents(origin, path)

    clone.run("dvc", "pull")
    assert contents(clone, *lock(clone)) == contents(origin, *lock(origin))


def test_a_released_model_is_got_without_a_clone(origin: Workspace, tmp_path):
    author = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    origin.run("git", *author, "tag", "--annotate", f"{RUN}-v1.0.0", "--message", "first")
    (tmp_path / "elsewhere").mkdir()

    Workspace(tmp_path / "elsewhere").run(
        "dvc", "get", str(origin.path), f"onnx/{RUN}.onnx", "--rev", f"{RUN}-v1.0.0"
    )

    got = (tmp_path / f"elsewhere/{RUN}.onnx").read_bytes()
    assert got == (origin.path / f"onnx/{RUN}.onnx").read_bytes()


@pytest.mark.slow
def test_a_remote_that_goes_away_holds_whole_objects_and_the_push_goes_on(
    origin: Workspace, store: Store
):
    gate = Gate(store, puts=3)
    s3(origin, gate.port, "cut")
    before = origin.digest("dvc.lock") | origin.digest("onnx/*")

    said = origin.run("dvc", "push", "--jobs", "1", *OF_RUN, fails=True, **IMPATIENT)

    assert "files failed to upload" in said
    arrived = store.objects("cut/files/md5/")
    assert len(arrived) == 3 and not any(name.endswith(".dir") for name in arrived)
    for name in arrived:
        read = store.read(f"cut/files/md5/{name}")
        assert hashlib.md5(read).hexdigest() == name.replace("/", "")
    assert origin.digest("dvc.lock") | origin.digest("onnx/*") == before
    lost = origin.run("rrcm", "pull", EVAL, fails=True, **IMPATIENT)
    assert lost.startswith("error: the remote s3://") and "cannot be reached" in lost
    assert len(lost.splitlines()) == 1

    s3(origin, store.port, "cut")
    origin.run("dvc", "push", *OF_RUN, **KEYS)
    whole = {f"{md5[:2]}/{md5[2:]}" for md5 in contents(origin, *OF_RUN)}
    assert {n for n in store.objects("cut/files/md5/") if not n.endswith(".dir")} == whole


@pytest.mark.slow
def test_a_full_disk_under_a_pull_leaves_what_arrived_and_it_goes_on(origin: Workspace, tmp_path):
    clone = origin.clone(tmp_path / "clone")

    full = clone.run(*LARGE, "rrcm", "pull", RUN, fails=True)

    assert full.startswith("error: ") and len(full.splitlines()) == 1
    assert f"onnx/{RUN}.onnx" in full and "File too large" in full
    arrived = cached(clone)
    assert arrived and arrived < contents(origin, *OF_RUN)
    assert not (clone.path / f"onnx/{RUN}.onnx").exists()
    assert clone.run("git", "status", "--short") == ""
    clone.run("rrcm", "pull", RUN)
    assert contents(clone, *OF_RUN) == contents(origin, *OF_RUN)


@pytest.mark.parametrize(
    ("stage", "section", "change"),
    [
        ("shard", "data", {"test": 30}),
        pytest.param(f"export@{RUN}", "export", {"parity_images": 17}, marks=pytest.mark.slow),
    ],
    ids=["folders", "a file"],
)
def test_a_full_disk_under_the_cache_is_told_and_the_next_run_finishes(
    checkout: Workspace, tmp_path, stage: str, section: str, change: dict[str, int]
):
    """The stage itself may write what it likes; its result then does not fit into the cache.

    Of folders DVC 3.67 says so, records them, and exits 0 all the same.
    """
    roomy, path = tmp_path / "python", checkout.environment()["PATH"]
    python = shutil.which("python", path=path)
    roomy.write_text(f'#!/bin/sh\nulimit -S -f unlimited\nexec "{python}" "$@"\n')
    roomy.chmod(0o755)
    checkout.edit(lambda p: p[section].update(change))
    before, command = checkout.digest("dvc.lock"), ("dvc", "repro", "--single-item", stage)

    process = checkout.start(*LARGE, *command, PATH=f"{tmp_path}:{path}")
    said, _ = process.communicate(timeout=300)

    assert re.search("ERROR: failed to (transfer|reproduce)", said)
    assert (process.returncode != 0) == (checkout.digest("dvc.lock") == before)
    assert "up to date" not in checkout.run("dvc", "status", stage)
    checkout.run(*command)
    assert "up to date" in checkout.run("dvc", "status", stage)


def test_every_output_is_restored_from_the_cache(checkout: Workspace):
    outputs = [path for path in lock(checkout) if path != "metrics"]  # those are in git
    before = {path: contents(checkout, path) for path in outputs}
    for path in outputs:
        place = checkout.path / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    checkout.run("dvc", "checkout")

    assert {path: contents(checkout, path) for path in outputs} == before
    assert all(before.values())
    assert "up to date" in checkout.run("dvc", "status")


def test_a_bare_clone_knows_that_nothing_has_to_be_made(origin: Workspace, tmp_path):
    clone = origin.clone(tmp_path / "clone")

    assert clone.repro("--allow-missing", "--dry") == set()
    assert not [*clone.path.glob("onnx/*.onnx")]
    assert clone.run("git", "status", "--short") == ""


def test_without_a_remote_it_is_said_what_to_do(origin: Workspace, tmp_path):
    clone = origin.clone(tmp_path / "clone")
    (clone.path / ".dvc/config").write_text("[core]\n    analytics = false\n")

    alone = clone.run("rrcm", "pull", "tiny", fails=True)

    assert "pretrained/tiny/encoder.safetensors" in alone and "`dvc remote add --default" in alone
    assert len(alone.splitlines()) == 1
