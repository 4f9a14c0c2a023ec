"""`rrcm log` sends what was written, each step once, and says in a line why something is not."""

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner
from workspace import RUN, Workspace

from pipeline.project.log import log
from rrcm.cli import main as cli
from rrcm.core.errors import RrcmError

STAGE = f"train@{RUN}"


@pytest.fixture
def here(finished: Workspace, monkeypatch) -> Workspace:
    """The finished miniature as the current folder; nothing is written there."""
    monkeypatch.chdir(finished.path)
    for variable in ("MLFLOW_TRACKING_URI", "WANDB_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    return finished


def send(sink: str, to: Path | str, *only: str) -> list[str]:
    said: list[str] = []
    last = log(sink, to=str(to), only=only, say=said.append)
    return [*said, last]


def leveldb(data: bytes) -> Iterator[bytes]:
    """The records of a log in the format of LevelDB, with W&B's seven bytes before them."""
    place, record = 7, b""
    while place < len(data):
        if (left := 32768 - place % 32768) < 7:  # no header fits: the block is filled up
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def curve(column: str) -> list[tuple[int, float]]:
    with Path(f"models/{RUN}/log.csv").open() as file:
        return [(int(row["step"]), float(row[column])) for row in csv.DictReader(file)]


def accuracy() -> float:
    """That of validation, as the training has written it."""
    return json.loads(Path(f"provenance/{STAGE}.json").read_text())["validation_accuracy"]


# Sinks take seconds to import, which only the process that runs a test should pay.


def test_tensorboard_has_the_curves_and_the_accuracy(here: Workspace, tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second time in place of the first
        said = send("tensorboard", tmp_path)
        (folder,) = (tmp_path / STAGE).iterdir()
        (file,) = folder.glob("events.out.*")
        found = EventAccumulator(str(file)).Reload()

        scalars = {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}
        assert {one.step: one.value for one in scalars["loss"]} == pytest.approx(
            dict(curve("loss")), rel=1e-6
        )
        assert len(scalars["images_per_second"]) == len(curve("loss"))
        assert scalars["validation_accuracy"][-1].value == pytest.approx(accuracy())
        assert f"{STAGE}: {len(curve('loss'))} rows" in said
    assert {path.name for path in tmp_path.iterdir()} == {
        "pretrain@tiny", "train@tiny-gaussian-s050", STAGE,
    }  # fmt: skip


def test_mlflow_has_each_training_once_and_each_step_once(here: Workspace, tmp_path: Path):
    import mlflow

    for _ in range(2):
        sent = send("mlflow", tmp_path)
        client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
        (experiment,) = [one for one in client.search_experiments() if one.name == "rrcm"]
        runs = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
        assert {*runs} == {"pretrain@tiny", "train@tiny-gaussian-s050", STAGE}
        run = runs[STAGE]
        history = client.get_metric_history(run.info.run_id, "loss")
        assert [(one.step, one.value) for one in history] == curve("loss")
        assert run.data.metrics["validation_accuracy"] == accuracy()
        assert run.data.params["runs.loss.lbd"] == "10.0" and run.info.status == "FINISHED"

    assert len(client.search_runs([experiment.experiment_id])) == 3
    assert f"{STAGE}: {len(curve('loss'))} rows" in sent


def test_wandb_has_it_offline(here: Workspace, tmp_path: Path, monkeypatch):
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_SILENT", "true")
    for _ in range(2):
        send("wandb", tmp_path, STAGE)
    wandb.teardown()  # as at the end of a process; until then the file may be unfinished
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    records = [Record.FromString(data) for data in leveldb(file.read_bytes())]

    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in one.history.item}
        for one in records
        if one.HasField("history")
    ]
    assert [(row["_step"], row["loss"]) for row in rows] == curve("loss")
    (begun,) = [one.run for one in records if one.HasField("run")]
    assert begun.display_name == STAGE and begun.run_id == folder.name.rpartition("-")[2]
    summary: dict[str, float] = {}
    for one in records:
        if one.HasField("summary"):
            for item in one.summary.update:
                key = item.key or item.nested_key[0]
                summary[key] = json.loads(item.value_json)
    assert summary["validation_accuracy"] == accuracy()


def test_only_what_a_pattern_names_is_sent(here: Workspace, tmp_path: Path):
    asked = ["log", "tensorboard", "--to", str(tmp_path), "--only", "pretrain@*"]
    result = CliRunner().invoke(cli.app, [*asked, "--only", "*gaussian*"])

    assert f"{tmp_path}: `tensorboard --logdir" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        "pretrain@tiny", "train@tiny-gaussian-s050",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sink", "to", "only", "line"),
    [
        ("tensorbord", None, (), "no such sink, only mlflow, tensorboard, wandb. Did you mean"),
        ("tensorboard", "http://here", (), "--to http://here: tensorboard writes to a folder"),
        ("wandb", "http://here", (), "--to http://here: wandb writes to a folder"),
        ("tensorboard", "x", ("tiny-rcm-*",), "--only tiny-rcm-*: no training here has such"),
        ("mlflow", "http://127.0.0.1:9", (), "rrcm log mlflow: "),
    ],
)
def test_what_cannot_be_sent_is_one_line(here: Workspace, sink, to, only, line, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RrcmError) as refused:
        log(sink, to=to, only=only, say=print)

    assert line in str(refused.value) and "\n" not in str(refused.value)
    assert not Path("x").exists()


def test_a_folder_without_trainings_is_told_what_makes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RrcmError, match=r"no training has ended here: .*`rrcm repro`"):
        log("tensorboard", to=None, only=[], say=print)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("content", ["loss\n1\n", "step,loss\n1,2\n3,4,5\n"])
def test_a_damaged_log_is_one_line(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    Path("models/a").mkdir(parents=True)
    Path("models/a/log.csv").write_text(content)
    Path("models/a/config.json").write_text('{"params": {}}')

    with pytest.raises(RrcmError, match=r"^models/a/log.csv: [^\n]*`dvc checkout"):
        send("tensorboard", tmp_path / "tb")
