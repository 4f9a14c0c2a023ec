"""What params.yaml says now is never said of what was made with something else."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from builders import refusal, refused
from ruamel.yaml import YAML
from workspace import EVAL, RUN, Workspace

from pipeline.cli.main import checkout as project
from pipeline.project import results, stale
from pipeline.project.stale import Present
from rrcm.analysis.presentation import markup
from rrcm.certification.smoothed import Smoothed
from rrcm.certification.votes import records
from rrcm.cli import requests
from rrcm.cli.commands import on_demand, tables
from rrcm.cli.options import Options
from rrcm.core import registry
from rrcm.core.errors import BackendError
from rrcm.core.schema import finite
from rrcm.models.trained.base import checkpoint

OTHER = "tiny-gaussian-s050-e050"
ASKED = {"model": "tiny", "sigma": 0.5, "method": None}


@pytest.fixture
def here(checkout: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A finished checkout, and the commands run in it, in this process."""
    monkeypatch.chdir(checkout.path)
    monkeypatch.setattr(markup, "WIDTH", 300)  # a row is a line
    monkeypatch.setenv("COLUMNS", "300")
    return checkout


def row(text: str, method: str) -> str:
    """The row of a method in a table that is printed."""
    (found,) = (line for line in text.splitlines() if re.match(rf" *[\d.?]+ +{method}\b", line))
    return found


def set_to(dotted: str, value: Any) -> Any:
    def change(params: dict[str, Any]) -> None:
        *path, last = dotted.split(".")
        for key in path:
            params = params[key]
        params[last] = value

    return change


def asked(**options: Any) -> requests.Request:
    return project.request(Options(**ASKED | options))


def opened(**options: Any) -> Smoothed:
    request = asked(**options)
    return request.source.classifier(request.sample)


def test_what_is_as_params_yaml_says_is_not_marked(here: Workspace):
    compared = tables.compare([EVAL, OTHER], project, radii=None)

    assert "stale" not in results.overview() + compared
    for backend in ("onnx", "torch"):
        assert Present().asked(RUN, backend=backend).stale == ()


EDITS = [  # dotted key, new value, what it was, and the rows that it makes stale
    (f"runs.{RUN}.sigma", 0.6, 0.5, [EVAL]),
    (f"runs.{RUN}.method", "consistency", "'rrcm'", [EVAL]),
    ("recipes.scratch.epochs", 3, 2, [OTHER]),
    ("pretrain.tiny.steps", 31, 30, [EVAL]),
    ("data.test", 30, 20, [EVAL, OTHER]),
    ("sample.stop", "none", "'grid'", [EVAL, OTHER]),
    ("stopping.grid.beta", 0.002, 0.001, [EVAL, OTHER]),
    ("certify.alpha", 0.01, 0.001, [EVAL, OTHER]),
    (f"evals.{EVAL}.sigma", 0.25, 0.5, [EVAL]),
]


def test_a_row_is_described_by_what_made_it_and_marked(here: Workspace):
    """The same row as before the edit, with a mark, and below it what was edited."""
    before, text = results.overview(), Path("params.yaml").read_text()
    for key, value, was, names in EDITS:
        here.edit(set_to(key, value))
        said = results.overview()

        for method, name in (("rrcm", EVAL), ("gaussian", OTHER)):
            now, then = row(said, method).split(), row(before, method).split()
            assert [word for word in now if word != "(stale)"] == then, key
            assert ("(stale)" in now) == (name in names), key
        (line,) = (line for line in said.splitlines() if line.startswith("stale: tiny"))
        assert line.startswith(f"stale: {', '.join(names)}: ")
        assert f"{key} was {was}, is now {value!r}" in line
        if key != "data.test":
            assert f"`rrcm repro {' '.join(f'certify@{name}' for name in names)}` makes" in line
        (entry,) = Present().evaluations([names[0]])
        assert (entry.sigma, entry.sigma_train, entry.seed, entry.alpha) == (0.5, 0.5, 0, 0.001)
        Path("params.yaml").write_text(text)


def test_a_renamed_run_is_shown_by_what_it_was(here: Workspace):
    def rename(params: dict[str, Any]) -> None:
        params["runs"]["mine"] = dict(params["runs"].pop(RUN)) | {"sigma": 0.7}
        params["evals"][EVAL]["run"] = "mine"

    here.edit(rename)

    entry = Present().evaluations([EVAL])[0]

    assert (entry.method, entry.sigma_train) == ("rrcm", 0.5)
    assert f"evals.{EVAL}.run was '{RUN}', is now 'mine'" in entry.stale
    assert f"runs.{RUN} is no longer there" in entry.stale


def test_a_classifier_of_another_name_than_asked_for_is_refused(here: Workspace):
    """`--sigma 0.6` never gets the network that was trained at 0.5."""
    Path("dvc.lock").unlink()  # as where a classifier came by itself, copied or released
    text = Path("params.yaml").read_text()
    for backend, key, value, said in (
        ("onnx", "sigma", 0.6, "sigma was 0.5, is now 0.6"),
        ("torch", "sigma", 0.6, "sigma was 0.5, is now 0.6"),
        ("onnx", "method", "consistency", "method was 'rrcm', is now 'consistency'"),
    ):
        Path("params.yaml").write_text(text)
        here.edit(set_to(f"runs.{RUN}.{key}", value))
        here.edit(set_to("sample.backend", backend))
        file = f"onnx/{RUN}.onnx" if backend == "onnx" else f"models/{RUN}"
        words = (f"{file} is not the {RUN}", f"runs.{RUN}.{said}", f"`rrcm repro export@{RUN}`")
        with refused(BackendError, *words):
            opened(**{key: value})


def test_other_edits_are_said_and_the_answer_is_of_the_file(here: Workspace, capsys):
    here.edit(set_to("recipes.finetune.epochs", 7))
    here.edit(set_to(f"runs.{RUN}.seed", 3))

    found = opened()
    said = capsys.readouterr().err

    assert found.backend.weights == records.read(here.path / f"votes/{EVAL}.jsonl")[0].weights
    assert said.startswith(f"note: stale: {RUN}: ") and len(said.splitlines()) == 1
    for words in ("recipes.finetune.epochs was 2, is now 7", f"runs.{RUN}.seed was 0, is now 3"):
        assert words in said
    table = on_demand.certify(asked(), project)
    assert "rrcm (stale)" in table and "seed" not in row(table, "rrcm")
    assert (capsys.readouterr().err + table).count("recipes.finetune.epochs was 2") == 1


def test_a_file_that_says_nothing_of_itself_is_refused(here: Workspace):
    path = here.path / f"models/{RUN}/config.json"
    about = json.loads(path.read_text())
    del about["params"]
    path.unlink()
    path.write_text(json.dumps(about))

    with refused(BackendError, f"models/{RUN} does not say", f"`rrcm repro export@{RUN}`"):
        Present().asked(RUN, backend="torch")


def test_a_file_from_before_a_key_existed_is_described(here: Workspace, monkeypatch):
    about = stale._about(RUN, "onnx")
    params = about["params"] | {"recipes.finetune": dict(about["params"]["recipes.finetune"])}
    del params["recipes.finetune"]["labels"]
    monkeypatch.setattr(stale, "_about", lambda *_: about | {"params": params})

    found = Present().asked(RUN, backend="onnx")

    assert (found.method, found.sigma) == ("rrcm", 0.5)
    assert found.stale == ("recipes.finetune.labels was not there, is now 1.0",)


def test_a_classifier_says_all_that_made_it(here: Workspace):
    """As dvc.lock does, so that a released file needs nothing beside it."""
    written = YAML(typ="safe", pure=True).load(here.path / "params.yaml")
    for backend in ("onnx", "torch"):
        about = registry.load("backends", backend).about(here.path, RUN)
        wanted = {f"runs.{RUN}", "recipes.finetune", "models.tiny", "pretrain.tiny"}
        assert {*about["params"]} - {"export"} == wanted
        for key, value in about["params"].items():
            section, _, name = key.partition(".")
            assert value == finite(written[section][name] if name else written[section])
    _, text = checkpoint.load(here.path / "pretrained/tiny/encoder.safetensors")
    assert json.loads(text["params"])["pretrain.tiny"] == finite(written["pretrain"]["tiny"])


def remade(workspace: Workspace, stage: str) -> None:
    """As if the outputs of a stage had been made anew, to other bytes, and nothing after it."""

    def change(lock: dict[str, Any]) -> None:
        for out in lock["stages"][stage]["outs"]:
            out["md5"] = "0" * 32

    workspace.edit(change, "dvc.lock")


def test_results_of_an_older_classifier_are_not_described_by_the_newer(here: Workspace):
    """Trained again at another sigma, exported, but not certified: the row is the old one's."""
    for stage in (f"train@{RUN}", f"export@{RUN}"):
        remade(here, stage)
    here.edit(set_to(f"runs.{RUN}.sigma", 0.6))

    def record(lock: dict[str, Any]) -> None:
        lock["stages"][f"train@{RUN}"]["params"]["params.yaml"][f"runs.{RUN}"]["sigma"] = 0.6

    here.edit(record, "dvc.lock")

    (old,) = Present().evaluations([EVAL])

    assert (old.method, old.sigma_train, old.sigma) == (RUN, None, 0.5)
    assert any("ran on an older" in reason for reason in old.stale)


def test_votes_and_certificates_that_do_not_belong_together(here: Workspace):
    path = here.path / f"votes/{EVAL}.jsonl"
    header, rows = records.read(path)
    other, _ = records.read(here.path / f"votes/{OTHER}.jsonl")
    records.write(path, dataclasses.replace(header, weights=other.weights), rows)

    (entry,) = Present().evaluations([EVAL])

    assert entry.votes is None and entry.sigma_train == 0.5
    assert entry.stale == (f"certificates/{EVAL}.csv is not of the votes in votes/{EVAL}.jsonl",)


def test_certificates_that_dvc_lock_does_not_have_say_so(here: Workspace):
    Path("dvc.lock").unlink()

    (entry,) = Present().evaluations([EVAL])

    assert (entry.model, entry.sigma, entry.alpha, entry.votes) == ("", None, None, None)
    assert entry.stale == (f"dvc.lock does not say how certificates/{EVAL}.csv was made",)


def test_the_page_is_said_to_be_older_than_the_table(here: Workspace):
    here.edit(set_to("report.radii", [0.0, 0.25]))

    said = results.overview()

    line = "stale: report/index.html: report.radii was [0.0, 0.25, 0.5], is now [0.0, 0.25]; "
    assert f"{line}`rrcm repro report` makes it anew" in said
    assert "(stale)" not in said


def test_the_command_line_says_so_too(checkout: Workspace):
    checkout.edit(set_to(f"runs.{RUN}.sigma", 0.6))
    words = ("--model", "tiny", "--sigma", "0.6")

    for command in (("certify",), ("predict", "--image", "16"), ("serve", "--port", "0")):
        said = refusal(checkout.path, "rrcm", *command, *words)
        assert said.startswith("error: ") and len(said.splitlines()) == 1
        assert f"runs.{RUN}.sigma was 0.5, is now 0.6" in said
