"""`rrcm pull`: names become the files that are needed, and failures of DVC one line."""

import logging
from dataclasses import replace

import pytest
from builders import refused
from dvc.exceptions import DvcException
from helpers import MINI
from workspace import EVAL, RUN

from pipeline.project import pulling
from pipeline.workflow import lockfile, remote
from pipeline.workflow.remote import PUSH, Missing
from rrcm.core.errors import ConfigError, DataError, StageError

OTHER = "tiny-gaussian-s050"
CERTIFIES = {"shards/test", f"onnx/{RUN}.onnx"}
MODEL = {f"models/{RUN}/{file}" for file in ("config.json", "model.safetensors", "log.csv")}
RESULTS = {f"votes/{EVAL}.jsonl", f"certificates/{EVAL}.csv"}
ENCODER = {f"pretrained/tiny/{file}" for file in ("encoder.safetensors", "log.csv")}
MADE = {
    **dict.fromkeys(["shards/test", "shards/train", "shards/validation"], "shard"),
    **dict.fromkeys([f"onnx/{RUN}.onnx", f"provenance/export@{RUN}.json"], f"export@{RUN}"),
    **dict.fromkeys(MODEL, f"train@{RUN}"),
    **dict(zip(sorted(RESULTS), (f"certify@{EVAL}", f"sample@{EVAL}"), strict=True)),
    **dict.fromkeys(ENCODER, "pretrain@tiny"),
    "report": "report",
    f"onnx/{OTHER}.onnx": f"export@{OTHER}",
    f"votes/{OTHER}-e050.jsonl": f"sample@{OTHER}-e050",
}


def test_a_name_is_what_it_takes_and_nothing_else():
    """Certifying takes the images that are sampled, int8 also those of its calibration."""
    for name, paths in {
        RUN: CERTIFIES | MODEL | RESULTS,
        EVAL: RESULTS,
        "tiny": ENCODER,
        "report": {"report"},
    }.items():
        assert {*pulling.wanted(name, MINI, MADE)} == paths
    other = replace(MINI, sample=replace(MINI.sample, precision="int8", split="choice"))

    made = MADE | {"shards/choice": "shard"}
    found = pulling.wanted(RUN, other, {k: v for k, v in made.items() if k not in RESULTS})

    wanted = CERTIFIES - {"shards/test"} | MODEL | {"shards/choice", "shards/validation"}
    assert {*found} == wanted


def test_names_that_nobody_knows_or_made_are_refused_in_one_line():
    with refused(ConfigError, "tiny-rcm-s050: params.yaml has no run", f"Did you mean '{RUN}'?"):
        pulling.wanted("tiny-rcm-s050", MINI, MADE)
    with refused(ConfigError, "name; `rrcm preset mnist` or `rrcm preset mnist-all` has it"):
        pulling.wanted("lenet-gaussian-s025", MINI, MADE)
    with refused(StageError, f"dvc.lock has no export@{RUN}", f"`rrcm repro export@{RUN}`"):
        pulling.wanted(RUN, MINI, {"shards/test": "shard"})
    with refused(StageError, "`rrcm repro report`"):
        pulling.wanted("report", MINI, {})


def logged(error: Exception, *args: object) -> logging.LogRecord:
    return logging.LogRecord("dvc", logging.ERROR, "", 0, "%s", args, (type(error), error, None))


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("records", "line"),
    [
        (
            [logged(OSError("Unable to locate credentials"), "s3", "b/d/files/md5")],
            "the remote s3://b/d cannot be reached: Unable to locate credentials",
        ),
        (
            [logged(FULL, "a1"), logged(FULL, "b2.dir")],
            "onnx/a.onnx, shards/test: No space left on device; files that arrived are kept, and "
            "the same command resumes",
        ),
        ([], "dvc pull: 2 files failed; files that arrived are kept, and the same command resumes"),
    ],
)
def test_what_dvc_logs_becomes_one_line(records: list[logging.LogRecord], line: str):
    made = {"onnx/a.onnx": "a1", "shards/test": "b2.dir"}
    error = remote._failed(records, made, DvcException("2 files failed"))

    assert (type(error), str(error)) == (DataError, line)


def test_a_remote_may_lack_what_certifying_does_not_read(monkeypatch: pytest.MonkeyPatch):
    def pull(*lacks: str) -> str:
        def fail(made: dict[str, str], remote: str | None) -> str:
            raise Missing([*lacks], "the default remote", PUSH)

        monkeypatch.setattr(pulling, "load", lambda: MINI)
        entries = {stage: {"outs": []} for stage in MADE.values()}
        for path, stage in MADE.items():
            entries[stage]["outs"].append({"path": path, "md5": "0"})
        monkeypatch.setattr(lockfile, "read", lambda: entries)
        monkeypatch.setattr(pulling, "pulled", fail)
        return pulling.pull([RUN], remote=None)

    model, votes = f"models/{RUN}/model.safetensors", f"votes/{EVAL}.jsonl"
    answer = pull(model, votes)
    assert f"{RUN}: all but {model}, {votes}, which the default remote lacks" in answer
    assert f"`rrcm certify --model {RUN} --sigma 0.5` certifies it" in answer
    for lacks, way in {
        "shards/test": "`rrcm data digits` and `rrcm repro shard` make them, or `dvc push`",
        f"onnx/{RUN}.onnx": "`dvc push` from the checkout that made it",
    }.items():
        with refused(DataError, f"{lacks}: missing or incomplete in the default remote; {way}"):
            pull(lacks, model)
