"""`rrcm log` sends what was written, each step once, and says in a line why something is not."""

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner
from wandb.proto.wandb_internal_pb2 import Record
from workspace import EVAL, RUN, Workspace

from pipeline.cli import main as cli
from pipeline.commands.log import log
from pipeline.tracking import interface, trainings
from pipeline.tracking.results import results
from pipeline.tracking.sending import Sender
from pipeline.tracking.trainings import Identity, Training
from rrcm.core.errors import ConfigError, RrcmError

STAGE = f"train@{RUN}"


@pytest.fixture
def here(finished: Workspace, monkeypatch) -> Workspace:
    """The finished miniature as the current folder; nothing is written there."""
    monkeypatch.chdir(finished.path)
    for variable in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    return finished


def send(sink: str, to: Path | str, *only: str) -> list[str]:
    said: list[str] = []
    said.append(log(sink, to=str(to), only=only, follow=False, say=said.append))
    return said


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


def expected() -> dict[str, float]:
    """The results of the run, as the report and the training have written them."""
    made = json.loads(Path(f"provenance/{STAGE}.json").read_text())
    metrics = json.loads(Path(f"metrics/{EVAL}.json").read_text())
    return {"validation_accuracy": made["validation_accuracy"]} | {
        f"sigma_0.5/{key}": value for key, value in metrics.items()
    }


def test_tensorboard_has_the_curves_and_results(here: Workspace, tmp_path: Path):
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
        assert {k: scalars[k][-1].value for k in expected()} == pytest.approx(expected())
        assert f"{STAGE}: {len(curve('loss'))} rows, {len(expected())} results" in said
    assert {path.name for path in tmp_path.iterdir()} == {
        "pretrain@tiny", "train@tiny-gaussian-s050", STAGE,
    }  # fmt: skip


def test_mlflow_has_each_training_once_and_each_step_once(here: Workspace, tmp_path: Path):
    first, second = send("mlflow", tmp_path), send("mlflow", tmp_path)

    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    (experiment,) = [one for one in client.search_experiments() if one.name == "rrcm"]
    runs = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    assert {*runs} == {"pretrain@tiny", "train@tiny-gaussian-s050", STAGE}
    run = runs[STAGE]
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == curve("loss")
    assert {k: run.data.metrics[k] for k in expected()} == expected()
    assert run.data.params["runs.loss.lbd"] == "10.0" and run.info.status == "FINISHED"
    assert f"{STAGE}: {len(curve('loss'))} rows, {len(expected())} results" in first
    assert f"{STAGE}: 0 rows, {len(expected())} results" in second


def test_wandb_has_it_offline(here: Workspace, tmp_path: Path, monkeypatch):
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
    assert {k: summary[k] for k in expected()} == expected()


def test_only_what_a_pattern_names_is_sent(here: Workspace, tmp_path: Path):
    asked = ["log", "tensorboard", "--to", str(tmp_path), "--only", "pretrain@*"]
    result = CliRunner().invoke(cli.app, [*asked, "--only", "*gaussian*"])

    assert f"{tmp_path}: `tensorboard --logdir" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        "pretrain@tiny", "train@tiny-gaussian-s050",
    }  # fmt: skip


def test_metrics_of_another_training_are_not_sent(checkout: Workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(checkout.path)
    path = Path(f"metrics/{EVAL}.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"acr": 9.0}))

    said = send("tensorboard", tmp_path / "tb", STAGE)

    assert any(line.startswith(f"{path}: not sent: it is not of this training") for line in said)
    (identity,) = [one for one in trainings.finished() if one.stage == STAGE]
    assert [*results(identity)[0]] == ["validation_accuracy"]


@pytest.mark.parametrize(
    ("sink", "to", "only", "line"),
    [
        ("tensorbord", None, (), "has no 'tensorbord', only mlflow, tensorboard, wandb. Did you"),
        ("tensorboard", "http://here", (), "--to http://here: tensorboard writes to a folder"),
        ("wandb", "http://here", (), "--to http://here: wandb writes to a folder"),
        ("tensorboard", "x", ("tiny-rcm-*",), "--only tiny-rcm-*: no training here has such"),
        ("mlflow", "http://127.0.0.1:9", (), "rrcm log mlflow: "),
    ],
)
def test_what_cannot_be_sent_is_one_line(here: Workspace, sink, to, only, line, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RrcmError) as refused:
        log(sink, to=to, only=only, follow=False, say=print)

    assert line in str(refused.value) and "\n" not in str(refused.value)
    assert not Path("x").exists()


def test_a_folder_without_trainings_is_told_what_makes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RrcmError, match=r"no training has written anything here.*--follow"):
        log("tensorboard", to=None, only=[], follow=False, say=print)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "content", ["", "loss\n1\n", "step,loss\n1,x\n", "step,loss\n1,2\n3,4,5\n"]
)
def test_a_damaged_log_is_one_line(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    Path("models/a").mkdir(parents=True)
    Path("models/a/log.csv").write_text(content)
    Path("models/a/config.json").write_text('{"params": {}}')

    with pytest.raises(RrcmError, match=r"^models/a/log.csv: [^\n]*`dvc checkout"):
        send("tensorboard", tmp_path / "tb")


def test_every_sink_is_a_file_of_its_folder():
    assert interface.names() == ["mlflow", "tensorboard", "wandb"]
    for name in interface.names():
        sink, refusals = interface.load(name)
        assert callable(sink.begin) and all(issubclass(one, Exception) for one in refusals)
    with pytest.raises(ConfigError):
        interface.load("os")


class Recorded:
    """A sink that keeps in ``said`` what it is sent."""

    place = shown = "here"

    def __init__(self):
        self.said = []

    def begin(self, identity, parameters):
        self.said.append(("begin", identity.digest))
        return self

    def scalars(self, step, values):
        self.said.append((step, values["loss"]))
        return True

    def flush(self):
        pass

    def end(self, summary):
        self.said.append(("end", summary))

    def close(self):
        self.said.append("close")


def training(digest: str, *rows: tuple[int, float]) -> Training:
    identity = Identity(stage="train@a", digest=digest)
    return Training(
        identity=identity, parameters={}, rows=[(step, {"loss": loss}) for step, loss in rows]
    )


@pytest.fixture
def saves(monkeypatch):
    """What the training `train@a` has saved now, and, once it has ended, its outputs."""
    now: dict[str, Training | None] = {"saved": None, "finished": None}
    monkeypatch.setattr(trainings, "running", lambda stage: now["saved"])
    monkeypatch.setattr(trainings, "saved", lambda one: now["saved"])
    ended = lambda: [now["finished"].identity] if now["finished"] else []  # noqa: E731
    monkeypatch.setattr(trainings, "finished", ended)
    monkeypatch.setattr(trainings, "read", lambda identity: now["finished"])
    monkeypatch.setattr("pipeline.tracking.sending.results", lambda identity: ({"acc": 0.5}, []))
    return now


def test_a_training_that_is_followed_has_each_step_once(saves):
    """Before its first save, after it, after an interruption, and when it has ended."""
    sink, said = Recorded(), []
    with Sender(sink, lambda stage: True, said.append).closing() as sender:
        sender.running(["train@a"])
        assert sink.said == []
        for rows in ([(10, 2.0)], [(10, 2.0), (20, 1.0)], [(10, 2.0), (20, 1.0)]):
            saves["saved"] = training("d", *rows)
            sender.running(["train@a"])
        saves.update(saved=None, finished=training("d", (10, 2.0), (20, 1.0), (30, 0.5)))
        sender.finished()
        sender.finished(again=True)

    sent = [("begin", "d"), (10, 2.0), (20, 1.0), (30, 0.5), ("end", {"acc": 0.5}), "close"]
    assert sink.said == sent
    assert said == ["train@a: follows it from step 10", "train@a: 1 rows, 1 results"]


def test_a_training_that_was_stopped_is_closed_and_one_of_other_inputs_is_another(saves):
    sink, said = Recorded(), []
    with Sender(sink, lambda stage: True, said.append).closing() as sender:
        saves["saved"] = training("d", (10, 2.0))
        sender.running(["train@a"])
        sender.running([])
        saves["saved"] = training("e", (10, 3.0))
        sender.running(["train@a"])
        saves.update(saved=None, finished=training("f", (10, 4.0)))
        sender.finished()

    assert sink.said == [
        *(("begin", "d"), (10, 2.0), "close"),
        *(("begin", "e"), (10, 3.0), "close"),  # it was edited, and began anew
        *(("begin", "f"), (10, 4.0), ("end", {"acc": 0.5}), "close"),
    ]
    assert said[1] == "train@a: ended before its last step; 10 is the last one sent"


def test_an_error_closes_what_is_open(saves):
    sink = Recorded()
    saves["saved"] = training("d", (10, 2.0))

    def broken() -> None:
        with Sender(sink, lambda stage: True, print).closing() as sender:
            sender.running(["train@a"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert sink.said[-1] == "close"
