"""What people type: found by value, answered at once, and wrong in one line."""

import re
import subprocess
import sys

import numpy as np
import pytest
import typer
from PIL import Image
from workspace import EVAL, ROOT, RUN, Workspace

import cli
from pipeline import presets, requests
from rrcm import certify, config
from rrcm.errors import ConfigError, RrcmError

SURFACE = {  # a new flag is a decision: hyper-parameters belong to params.yaml
    "certify": {"model", "sigma", "method", "eval-sigma", "n", "alpha", "subset"},
    "predict": {"model", "sigma", "method", "eval-sigma", "n", "alpha", "image"},
    "preset": {"name", "force", "no-force"},
    "report": set(),
    "doctor": set(),
    "data digits": set(),
}
RUN_VALUES = ("--model", "tiny", "--sigma", "0.5")


@pytest.fixture
def params() -> config.Params:
    return config.load(ROOT / "tests/mini.yaml")


def commands(group, prefix: str = "") -> dict[str, set[str]]:
    found = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, f"{name} ")
        else:
            options = {o.lstrip("-") for p in command.params for o in (*p.opts, *p.secondary_opts)}
            found[prefix + name] = options
    return found


def test_the_surface_is_closed():
    assert commands(typer.main.get_command(cli.app)) == SURFACE


def test_help_imports_nothing_heavy():
    heavy = {"torch", "pandas", "scipy", "dvc", "onnxruntime", "matplotlib"}
    code = f"import sys, cli; sys.exit(bool({heavy} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("written", ["0.5", ".5", "0.50", "5e-1"])
def test_runs_are_found_by_value(params: config.Params, written: str):
    found = requests.find_run(params, model="tiny", method="rrcm", sigma=float(written))

    assert found == RUN


@pytest.mark.parametrize(
    "wanted, said",
    [
        ({"model": "tinny"}, "Did you mean 'tiny'?"),
        ({"model": "b_deep", "sigma": 1.0}, "dvc repro export@b_deep-rrcm-s100"),
        ({"model": "b_deep", "sigma": 1.0}, "dvc pull onnx/b_deep-rrcm-s100.onnx"),
        ({"method": "macer"}, "only tiny gaussian σ = 0.5, tiny rrcm σ = 0.5"),
        ({"sigma": 0.25}, "params.yaml has no tiny rrcm σ = 0.25"),
    ],
)
def test_a_run_that_is_not_there_says_what_is_and_how_to_get_it(params, wanted, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        requests.find_run(params, **{"model": "tiny", "method": "rrcm", "sigma": 0.5} | wanted)

    assert "\n" not in str(error.value)


def test_presets_replace_only_what_is_nobodys_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    for name in ("one", "two"):
        (tmp_path / f"presets/{name}.yaml").write_text(f"name: {name}\n")

    presets.use("one", force=False)
    presets.use("two", force=False)
    assert (tmp_path / "params.yaml").read_text() == "name: two\n"

    (tmp_path / "params.yaml").write_text("name: mine\n")
    with pytest.raises(ConfigError, match="edited"):
        presets.use("one", force=False)
    assert (tmp_path / "params.yaml").read_text() == "name: mine\n"
    presets.use("one", force=True)
    with pytest.raises(ConfigError, match="Did you mean 'two'"):
        presets.use("twoo", force=True)
    assert (tmp_path / "params.yaml").read_text() == "name: one\n"


def test_errors_take_one_line_and_exit_1(finished: Workspace):
    output = finished.run("rrcm", "certify", "--model", "b_deep", "--sigma", "1.0", fails=True)

    assert output.startswith("error: ") and len(output.splitlines()) == 1


def test_certify_uses_the_votes_of_the_graph_and_agrees_with_it(checkout: Workspace):
    output = checkout.run("rrcm", "certify", *RUN_VALUES)
    ours = next(checkout.path.glob("results/*.csv"))

    assert f"votes: votes/{EVAL}.jsonl" in output and not (checkout.path / ".rrcm/votes").exists()
    assert ours.read_bytes() == (checkout.path / f"certificates/{EVAL}.csv").read_bytes()


def test_certify_with_more_draws_samples_and_resumes(checkout: Workspace):
    command = ("rrcm", "certify", *RUN_VALUES, "--n", "300", "--subset", "first:5")

    first = checkout.run(*command)
    (votes,) = checkout.path.glob(".rrcm/votes/*.jsonl")
    whole = votes.read_bytes()
    votes.write_bytes(whole[: len(whole) // 2])
    second = checkout.run(*command)

    table = certify.read(next(checkout.path.glob("results/*n300*.csv")))
    assert "noisy images/s" in first and "5 images, n0 = 20, n = 300" in second
    assert len(table) == 5 and set(table["n"]) == {300}
    assert votes.read_bytes() == whole


def test_predict_agrees_with_the_table_and_reads_pictures(finished: Workspace, tmp_path):
    row = next(certify.read(finished.path / f"certificates/{EVAL}.csv").itertuples())
    answer = finished.run("rrcm", "predict", *RUN_VALUES, "--image", str(row.idx))
    Image.fromarray(np.full((8, 8), 200, dtype=np.uint8)).save(tmp_path / "grey.png")
    Image.fromarray(np.zeros((9, 8, 3), dtype=np.uint8)).save(tmp_path / "large.png")

    said = "abstain" if row.predict == -1 else f"class {row.predict}"
    assert said in answer and f"the label is {row.label}" in answer
    assert f"{row.n_A} of 100 noisy draws" in answer
    assert finished.run("rrcm", "predict", *RUN_VALUES, "--image", f"{tmp_path}/grey.png")
    for image, error in [
        ("large.png", "8 x 9 pixels, but the model takes 8 x 8"),
        ("no.png", "neither"),
    ]:
        wrong = finished.run(
            "rrcm", "predict", *RUN_VALUES, "--image", f"{tmp_path}/{image}", fails=True
        )
        assert wrong.startswith("error: --image") and error in wrong


def test_report_and_doctor_say_what_there_is(checkout: Workspace):
    report = checkout.run("rrcm", "report")
    assert "the report: report/index.html" in report and "gaussian" in report

    (checkout.path / f"certificates/{EVAL}.csv").unlink()
    (checkout.path / f"onnx/{RUN}.onnx").unlink()

    assert "`dvc repro` makes it" in checkout.run("rrcm", "report", fails=True)
    doctor = checkout.run("rrcm", "doctor")
    assert f"--  onnx/{RUN}.onnx: not here; `dvc repro export@{RUN}`" in doctor
    assert "ok  onnx/tiny-gaussian-s050.onnx" in doctor


def test_every_error_of_ours_is_caught_by_the_command_line(monkeypatch):
    def fail() -> None:
        raise RrcmError("what, where, and the way out")

    monkeypatch.setattr(cli, "app", fail)

    with pytest.raises(SystemExit, match=r"^error: what, where, and the way out$"):
        cli.main()
