"""Remotes: what is pushed in one clone is what another one pulls."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from builders import printed
from workspace import EVAL, RUN, Workspace

OF_RUN = [
    *("shards/test", f"onnx/{RUN}.onnx", f"votes/{EVAL}.jsonl", f"certificates/{EVAL}.csv"),
    *(f"models/{RUN}/{file}" for file in ("config.json", "model.safetensors", "log.csv")),
]
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


def cached(checkout: Workspace) -> set[str]:
    """The objects of a checkout's cache by hash, but for those of folders."""
    found = (checkout.path / ".dvc/cache/files/md5").glob("??/[0-9a-f]*")
    return {f.parent.name + f.name for f in found if f.suffix != ".dir"}


def contents(checkout: Workspace, *paths: str) -> set[str]:
    """MD5 of the files at these places."""
    places = [checkout.path / path for path in paths]
    files = [f for p in places for f in (p.rglob("*") if p.is_dir() else [p]) if f.is_file()]
    return {hashlib.md5(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of an S3-compatible server on loopback, with an empty bucket."""
    import boto3  # seconds, which only the process that runs this should pay
    from moto.server import ThreadedMotoServer

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    client = boto3.client("s3", endpoint_url="http://{}:{}".format(*server.get_host_and_port()))
    client.create_bucket(Bucket="rrcm")
    yield client
    server.stop()


def test_over_s3_a_clone_certifies_a_run_without_training(checkout: Workspace, store, tmp_path):
    """It pulls the run's files and no others, and draws the votes that the graph drew."""
    config = "[core]\n    remote = s3\n['remote \"s3\"']\n    url = s3://rrcm/all\n"
    (checkout.path / ".dvc/config").write_text(
        f"{config}    endpointurl = {store.meta.endpoint_url}\n"
    )
    checkout.commit("results")
    clone = checkout.clone(tmp_path / "clone")

    checkout.run("dvc", "push")
    said = clone.run("rrcm", "pull", RUN)

    of_run = contents(checkout, *OF_RUN)
    assert cached(clone) == of_run
    assert store.list_objects_v2(Bucket="rrcm")["KeyCount"] > 3 * len(of_run)
    assert contents(clone, *OF_RUN) == of_run and "`rrcm certify --model tiny" in said
    (clone.path / f"votes/{EVAL}.jsonl").unlink()
    drawn = printed(clone.path, "certify", "--model", "tiny", "--sigma", "0.5")
    (ours,) = clone.path.glob("results/*.csv")
    assert "votes: .rrcm/votes/" in drawn
    assert ours.read_bytes() == (checkout.path / f"certificates/{EVAL}.csv").read_bytes()
    assert clone.run("git", "status", "--short") == ""
