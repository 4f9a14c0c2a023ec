"""What people type: found by value, answered at once, and wrong in one line."""

import subprocess
import sys
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import typer
from builders import printed, refusal, refused
from helpers import MINI
from packaging.requirements import Requirement
from PIL import Image
from typer.testing import CliRunner
from workspace import EVAL, ROOT, RUN, Workspace

import rrcm
from pipeline.cli.main import checkout as project
from pipeline.project import runs
from rrcm.certification import certify
from rrcm.cli import app as program
from rrcm.cli import main as cli
from rrcm.cli import requests
from rrcm.cli.commands import doctor
from rrcm.cli.options import Options
from rrcm.cli.project import Project
from rrcm.config import defaults
from rrcm.core.errors import BackendError, ConfigError

HEAVY = {*"numpy torch pandas scipy numba dvc prefect onnxruntime matplotlib".split()}
RUN_VALUES = ("--model", "tiny", "--sigma", "0.5")


def test_a_command_that_is_not_here_is_one_line():
    """It names the nearest one; where a checkout has added none, that it would."""
    typo = CliRunner().invoke(cli.app, ["repor"])
    without = typer.Typer(cls=program.Commands)
    without.command(rich_help_panel=program.RESULTS)(lambda: None)
    without.callback()(lambda: None)
    absent = CliRunner().invoke(without, ["repro"], prog_name="rrcm")

    assert str(typo.exception).endswith("repor: no such command. Did you mean 'report'?")
    assert str(absent.exception) == (
        "rrcm repro: no such command here; a checkout of rrcm has more: `make env`"
    )


def test_help_lists_commands_under_headings_with_whole_summaries():
    listed = CliRunner().invoke(cli.app, ["-h"], terminal_width=80)
    text = " ".join(listed.output.split())
    group = typer.main.get_command(cli.app)

    places = [listed.output.index(f"\n{heading}:\n") for heading in program.HEADINGS]
    assert places == sorted(places)
    assert "\nCommands:\n" not in listed.output  # every command has a heading
    for name, command in group.commands.items():
        assert f"{name} {command.get_short_help_str(10_000)}" in text
    assert "..." not in text.replace("[ARGS]...", "")


def test_the_version_is_that_of_the_package():
    assert CliRunner().invoke(cli.app, ["--version"]).output == f"rrcm {rrcm.__version__}\n"


def test_help_gives_the_default_that_holds_outside_of_a_checkout():
    """Of every option that a classifier from elsewhere takes."""
    group = typer.main.get_command(cli.app)
    of_params = {
        option.name: option.show_default
        for option in group.commands["certify"].params
        if " of a checkout" in str(option.show_default) and option.name not in requests.OURS
    }

    known = asdict(defaults.DRAWS) | {"radii": "each half sigma in reach"}
    known |= {"tolerance": "its own", "seed": "fresh for image files"}
    assert of_params.keys() >= {"batch_size", "n", "alpha", "tolerance"}
    for name, shown in of_params.items():
        assert shown.startswith(f"{known[name]}, or "), name


def test_an_attack_finds_pictures_in_one_way():
    asked = ["attack", "--sigma", "1", "--onnx", "a.onnx", "--surrogate", "a", "--foolbox", "b"]
    result = CliRunner().invoke(cli.app, asked)

    assert str(result.exception).startswith("--surrogate and --foolbox: pictures are found in one")


def test_help_imports_nothing_heavy():
    modules = "rrcm.__main__, rrcm.cli.main, rrcm.cli.requests"
    code = f"import sys, {modules}; sys.exit(bool({HEAVY} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    "wanted, said",
    [
        (
            {"model": "b_deep", "sigma": 1.0},
            "params.yaml has no model 'b_deep', only tiny; `rrcm preset imagenet` has one trained "
            "at 1: `rrcm repro export@b_deep-rrcm-s100` then makes it, or `rrcm pull "
            "b_deep-rrcm-s100` where a remote has it",
        ),
        ({"model": "b", "sigma": 0.25}, "`rrcm preset cifar10` has one trained"),
        (
            {"model": "r110", "method": "densepure5", "sigma": 0.25},
            "`rrcm preset cifar10-diffusion` has one trained at 0.25: `rrcm repro purify@",
        ),
        (
            {"sigma": 0.3},
            "params.yaml has tiny rrcm at sigma = 0.5, not at 0.3; `--sigma 0.5 --eval-sigma 0.3` "
            "smooths the one trained at 0.5 with 0.3",
        ),
        ({"sigma": 0.3, "eval_sigma": 0.4}, "`--sigma 0.5 --eval-sigma 0.4` smooths the one"),
        ({"sigma": 0.3, "eval_sigma": 0.5}, "`--sigma 0.5` smooths the one"),
        ({"sigma": 0.25}, "`rrcm preset digits` has one"),
        ({"model": "tinny"}, "no model 'tinny', only tiny. Did you mean 'tiny'?"),
        (
            {"method": "gausian"},
            "no tiny gausian, only tiny with gaussian, rrcm. Did you mean 'gaussian'?",
        ),
    ],
)
def test_a_run_that_is_not_there_is_found_elsewhere(monkeypatch, wanted, said):
    """Each way out works: it is of a preset, or of params.yaml."""
    monkeypatch.chdir(ROOT)

    asked = {"model": "tiny", "method": "rrcm", "sigma": 0.5} | wanted
    with refused(ConfigError, said):
        runs.find_run(MINI, **{"eval_sigma": asked["sigma"]} | asked)


# What a request is, without a checkout that has models in it.


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with params.yaml and one exported run."""
    (tmp_path / "params.yaml").write_bytes((ROOT / "tests/mini.yaml").read_bytes())
    (tmp_path / "onnx").mkdir()
    (tmp_path / f"onnx/{RUN}.onnx").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resolve(sigma: float = 0.5, **options) -> requests.Request:
    return project.request(Options(**{"model": "tiny", "sigma": sigma} | options))


@pytest.mark.parametrize(
    "command", [["certify", *RUN_VALUES, "--n", "5"], ["status"], ["report"], ["compare", "a", "b"]]
)
def test_a_command_that_needs_a_checkout_finds_it_above(here: Path, monkeypatch, command):
    """As git does; where there is none, params.yaml is missing."""
    below = here / "some/where"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    alone = CliRunner().invoke(cli.app, command)
    (here / "dvc.yaml").touch()

    CliRunner().invoke(cli.app, command)

    assert "params.yaml" in str(alone.exception) and Path.cwd() == here


def test_paths_stay_those_of_the_folder_in_which_they_were_given(here: Path, monkeypatch):
    (here / "dvc.yaml").touch()
    (here / ".git").mkdir()
    (here / "below").mkdir()
    (here / "below/3").touch()
    monkeypatch.chdir(here / "below")

    monkeypatch.setattr("rrcm.cli.commands.predict.predict", lambda request, image, page: image)

    result = CliRunner().invoke(cli.app, ["predict", *RUN_VALUES, "--image", "3"])
    assert Path.cwd() == here and f"{here}/below/3\n" in result.output
    monkeypatch.chdir(here / "below")
    result = CliRunner().invoke(cli.app, ["data", "mnist", "--from", "3"])
    assert Path.cwd() == here and f"{here}/below/3" in str(result.exception)


def test_a_request_without_options_is_params_yaml(here: Path):
    found = resolve(n=None, subset=None, stop=None, strict=False)

    assert (found.sample, found.report) == (MINI.sampling, MINI.report)
    assert found.certificates == MINI.certify.certificates
    assert found.source.evaluation == MINI.evals[EVAL]
    assert found.source.votes == (Path(f"votes/{EVAL}.jsonl"),)
    assert (found.shard, found.budget) == ("1/1", 0.0)


def test_options_replace_what_params_yaml_says(here: Path):
    sample = {
        "n": 300,
        "n0": 7,
        "split": "choice",
        "subset": "first:5",
        "stop": "anytime",
        "batch_size": 7,
    }

    found = resolve(**sample, alpha=0.01, eval_sigma=0.25, budget="90s", shard="2/3")

    constants = MINI.stopping["anytime"]
    assert found.sample == replace(MINI.sampling, **sample, alpha=0.01, stopping=constants)
    assert resolve(**sample, tolerance=0.3).sample.stopping == constants | {"tolerance": 0.3}
    assert "proportional" not in MINI.stopping  # the radii of the report, and else its own
    assert resolve(stop="proportional").sample.stopping == {"radii": MINI.report.radii}
    assert found.certificates == MINI.certify.certificates
    assert (found.source.evaluation.sigma, found.source.evaluation.run) == (0.25, RUN)
    assert (found.source.trained_at, found.source.votes) == (0.5, ())
    assert (found.budget, found.shard) == (90.0, "2/3")


def test_a_server_stops_where_asked(here: Path, monkeypatch):
    """By default by a rule that a deadline may end, although params.yaml may have another."""
    served = []
    path = "rrcm.cli.commands.serve.serve"
    monkeypatch.setattr(path, lambda request, **how: served.append(request))
    for more in ([], ["--tolerance", "0.3"]):
        CliRunner().invoke(cli.app, ["serve", *RUN_VALUES, *more])

    assert MINI.sample.stop not in [one.sample.stop for one in served] == ["spending", "anytime"]
    assert served[1].sample.stopping["tolerance"] == 0.3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop": "grit"}, "certification/stopping/ has no 'grit', only anytime"),
        ({"n": 0}, "n: must be positive"),
        (
            {"tolerance": 0.1, "stop": "grid"},
            "--tolerance: is of the rule anytime, and was given --stop grid",
        ),
        ({"tolerance": 0.0, "stop": "anytime"}, "--tolerance: must be positive and finite, got 0"),
        ({"split": "validation"}, "--split: must be test or choice, got 'validation'"),
        ({"n": 9}, "9 draws can never certify at certify.alpha = 0.001"),
        ({"alpha": 1.5}, "alpha: must be in (0, 1), got 1.5"),
        ({"eval_sigma": -1.0}, "--eval-sigma: must be positive, got -1"),
        ({"sigma": -1.0}, "--sigma: must be positive, got -1"),
        ({"sigma": float("nan")}, "--sigma: must be positive, got nan"),
        ({"sigma": 60.0}, "that is --sigma 0.235"),
        ({"sigma": 5000.0}, "--sigma: must be at most 10"),
        ({"sigma": 0.25}, "params.yaml has tiny rrcm at sigma = 0.5, not at 0.25"),
        ({"budget": "10"}, "--budget: expected a time such as 90s, 10m or 1.5h, got '10'"),
        ({"budget": "0s"}, "--budget: expected"),
        ({"noise": "white"}, "certification/distributions/ has no 'white', only gaussian"),
        ({"certificate": "cohn"}, "Did you mean 'cohen'?"),
        ({"backend": "tensorrt"}, "inference/backends/ has no 'tensorrt', only lanes, onnx, torch"),
        (
            {"precision": "fp8"},
            "--precision: must be fp32 or fp16 or int8 or bf16 or auto, got 'fp8'",
        ),
        ({"allow": "int8"}, "--allow: goes with --precision auto only"),
        ({"precision": "auto", "allow": "int4"}, "got 'int4'. Did you mean 'int8'?"),
        ({"subset": "some"}, "expected all, every:K or first:K, got 'some'"),
        (
            {"model": None},
            "give one of --model, --onnx, --timm, --checkpoint and --module; got none",
        ),
        ({"onnx": "a.onnx"}, "got --model and --onnx"),
        ({"mean": ".5"}, "--mean does not go with --model"),
        ({"model": None, "onnx": "a", "eval_sigma": 1.0}, "--eval-sigma does not go with --onnx"),
        ({"model": None, "timm": "a", "normalise": "none"}, "--normalise does not go with --timm"),
        ({"model": None, "timm": "a", "size": "big"}, "--size: expected pixels, such as 224"),
        ({"model": None, "timm": "a", "std": "1,x"}, "--std: expected a number for each channel"),
        ({"model": None, "onnx": "a", "channels": 4}, "--channels: 1 (grey) or 3 (RGB), got 4"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for_is_refused_in_one_line(here: Path, options, said):
    with refused(ConfigError, said):
        resolve(**options)


def test_a_run_that_is_not_exported_says_how_to_get_it(here: Path):
    (here / f"onnx/{RUN}.onnx").unlink()

    with refused(BackendError, f"onnx/{RUN}.onnx is not here", f"`rrcm repro export@{RUN}`"):
        resolve()


def test_times_are_seconds():
    assert [*map(requests.seconds, ("90s", "10m", "1.5h", "0.5s"))] == [90, 600, 5400, 0.5]


def test_certify_uses_the_votes_of_the_graph_and_agrees_with_it(checkout: Workspace, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = printed(checkout.path, "certify", *RUN_VALUES)
    ours = next(checkout.path.glob("results/*.csv"))

    assert f"votes: votes/{EVAL}.jsonl" in output and not (checkout.path / ".rrcm/votes").exists()
    assert ours.read_bytes() == (checkout.path / f"certificates/{EVAL}.csv").read_bytes()


def test_predict_agrees_with_the_table_and_reads_pictures(finished: Workspace, tmp_path):
    table = certify.read(finished.path / f"certificates/{EVAL}.csv")
    row = next(table[table["predict"] >= 0].itertuples())
    answer = printed(finished.path, "predict", *RUN_VALUES, "--image", str(row.idx))
    Image.fromarray(np.full((8, 8), 200, dtype=np.uint8)).save(tmp_path / "grey.png")
    Image.fromarray(np.zeros((9, 8, 3), dtype=np.uint8)).save(tmp_path / "large.png")

    assert f"class {row.predict}," in answer and f"the label is {row.label}" in answer
    radius = float(answer.partition("radius of ")[2].split()[0])
    assert row.radius - 1e-4 < radius <= row.radius
    assert f"{row.n_A} of {row.n} noisy draws" in answer
    assert printed(finished.path, "predict", *RUN_VALUES, "--image", f"{tmp_path}/grey.png")
    for image, error in [
        ("large.png", "8 x 9 pixels, but the model takes 8 x 8"),
        ("no.png", "neither"),
    ]:
        path = f"{tmp_path}/{image}"
        wrong = refusal(finished.path, "rrcm", "predict", *RUN_VALUES, "--image", path)
        assert wrong.startswith("error: --image") and error in wrong


def test_report_and_doctor_say_what_there_is(checkout: Workspace):
    report = printed(checkout.path, "report")
    assert "the report: report/index.html" in report and "gaussian" in report

    (checkout.path / f"certificates/{EVAL}.csv").unlink()
    (checkout.path / f"onnx/{RUN}.onnx").unlink()

    report = printed(checkout.path, "report")
    assert f"not here: {EVAL}; `rrcm repro` makes" in report and "the report" not in report
    assert "0.5 " in report  # the other evaluation
    (checkout.path / "certificates").rename(checkout.path / "elsewhere")
    assert ".csv is not here; `rrcm repro` makes" in refusal(checkout.path, "rrcm", "report")
    found = printed(checkout.path, "doctor")
    assert f"--  onnx/{RUN}.onnx: not here; `rrcm repro export@{RUN}`" in found
    assert "ok  onnx/tiny-gaussian-s050.onnx" in found
    broken = checkout.path / "params.yaml"
    broken.write_text(broken.read_text().replace("n0: 20,", "n0: 0,"))
    found = printed(checkout.path, "doctor", code=1)
    assert "!!  params.yaml: sample.n0: must be positive, got 0" in found
    assert found.endswith("needed, and missing: params.yaml\n")


@pytest.mark.parametrize(
    ("needed", "said", "code"),
    [
        ("no-such>=1", "!!  no-such: not installed; `pip install 'no-such>=1'`", 1),
        ("numpy<1", "needs <1; `pip install 'numpy<1'`", 1),
        ("broken>=1", "!!  broken 1.2: cannot be imported (operator x::y does not exist)", 1),
        (
            'no-such>=1; extra == "serve"',
            '--  extra serve: no-such not installed; `pip install "rrcm[serve]"`',
            0,
        ),
        ('numpy>=1; extra == "serve"', "ok  extra serve", 0),
        ('numpy<1; extra == "serve"', "needs <1; `pip install 'numpy<1'`", 1),
    ],
)
def test_doctor_examines_packages_and_extras(monkeypatch, tmp_path, needed, said, code):
    """One that cannot be imported is installed, in a version that fits."""
    (tmp_path / "broken.py").write_text("raise RuntimeError('operator x::y does not exist')")
    about = tmp_path / "broken-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "requires", lambda name: ["typer", needed])
    monkeypatch.setattr(doctor, "_devices", list)
    monkeypatch.setattr(type(project), "findings", lambda self: [])

    result = CliRunner().invoke(cli.app, ["doctor"])

    assert result.exit_code == code and said in result.output
    last = result.output.splitlines()[-1]
    assert code == 0 or last == f"needed, and missing: {Requirement(needed).name}"


def test_doctor_does_not_pass_a_torchvision_without_its_operators(monkeypatch):
    for has, mark in ((True, "ok"), (False, "--")):
        monkeypatch.setattr(doctor, "_has_operators", lambda has=has: has)
        assert doctor._import("torchvision", "0")[0] == mark


def test_doctor_imports_packages_by_the_name_that_they_have():
    for one in map(Requirement, requires("rrcm")):
        if not one.marker or any(one.marker.evaluate({"extra": each}) for each in doctor.SHOWN):
            assert find_spec(doctor.MODULES.get(one.name, one.name.replace("-", "_"))), one


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ((), ("--", 'pip install "rrcm[cpu]"')),
        (("onnxruntime", "onnxruntime-gpu"), ("!!", "`pip uninstall onnxruntime onnxruntime-gpu`")),
        (("onnxruntime-gpu",), ("ok", "CPUExecutionProvider")),
    ],
)
def test_doctor_wants_one_runtime_at_most(monkeypatch, installed, said):
    """Two would overwrite each other's files."""

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(doctor, "version", version)

    mark, text = doctor._runtime()

    assert mark == said[0] and said[1] in text


def test_doctor_fails_without_a_tool_and_names_it(tmp_path, monkeypatch):
    """Not without a GPU or a params.yaml, which classifiers of others do without."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_packages", list)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    well = CliRunner().invoke(cli.app, ["doctor"])
    monkeypatch.setattr("shutil.which", lambda name: None if name == "dvc" else "/bin/x")

    result = CliRunner().invoke(cli.app, ["doctor"])

    assert well.exit_code == 0 and "--  params.yaml: not found" in well.output
    assert result.exit_code == 1 and "!!  dvc: not on PATH" in result.output
    assert result.output.splitlines()[-1] == "needed, and missing: dvc"
    monkeypatch.setattr(cli, "PROJECT", Project())  # outside of a checkout
    assert "dvc" not in CliRunner().invoke(cli.app, ["doctor"]).output


def test_evaluations_are_compared_by_their_names(finished: Workspace):
    other = "tiny-gaussian-s050-e050"
    compared = printed(finished.path, "compare", EVAL, other, "--radii", "0,0.25")

    assert "20 images" in compared and "B: tiny-gaussian" in compared and "p, Holm" in compared
    wrong = refusal(finished.path, "rrcm", "compare", EVAL, "no-such")
    assert wrong.startswith("error: no-such: neither a file nor an evaluation")
    assert len(wrong.splitlines()) == 1
