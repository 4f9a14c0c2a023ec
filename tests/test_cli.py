"""What people type: found by value, answered at once, and wrong in one line."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from builders import refused
from PIL import Image
from workspace import EVAL, ROOT, RUN, Workspace

import cli
from pipeline import presets, requests
from rrcm import certify
from rrcm import params as parameters
from rrcm.errors import BackendError, ConfigError, RrcmError
from rrcm.params import Params

SOURCE = {  # options of all that asks a classifier
    *("model", "sigma", "method", "eval-sigma", "onnx", "timm", "weights", "classes", "size"),
    *("resize", "mean", "std", "output", "batch-size", "n", "alpha"),
}
SURFACE = {  # a new flag is a decision: hyper-parameters belong to params.yaml
    "certify": {
        *SOURCE,
        *("images", "labels", "strict", "subset", "stop", "budget", "shard", "devices", "prefixes"),
    },
    "merge": {"votes"},
    "predict": {*SOURCE, "image"},
    "serve": {*SOURCE, "host", "port", "timeout", "queue", "max-bytes", "reproducible"},
    "preset": {"name", "base", "force", "no-force"},
    "pull": {"names", "remote"},
    "report": {"files", "out", "alpha", "sigma"},
    "compare": {"first", "second", "radii"},
    "derive": {"votes", "n", "alpha", "certificate", "out"},
    "audit": {"files", "n", "alpha", "sigma"},
    "doctor": {"rng"},
    "bench": {"model", "batch-size", "image-size", "seconds", "repeats", "json"},
    "latency": {"seconds", "radius", "reference", "out"},
    "representations": {"out"},
    "import": {
        *("file", "arch", "classes", "sigma", "name", "skip-norm", "heads", "image-size"),
        *("denoiser", "schedule", "rescale", "head-channels"),
    },
    "flow run": {"targets", "force", "retries", "hosts", "commit", "publish"},
    "flow up": {"host", "port", "schedules", "no-schedules"},
    "flow worker": {"queue", "name", "limit"},
    "flow deploy": {"schedules", "no-schedules"},
    "data digits": set(),
    "data cifar10": {"from", "no-verify"},
    "data imagenet": {"from", "no-verify", "skip-unreadable"},
    "data folder": {"from", "skip-unreadable"},
}
HEAVY = {"torch", "pandas", "scipy", "numba", "dvc", "prefect", "onnxruntime", "matplotlib"}
RUN_VALUES = ("--model", "tiny", "--sigma", "0.5")


@pytest.fixture
def params() -> Params:
    return parameters.load(ROOT / "tests/mini.yaml")


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
    for module in ("cli", "pipeline.requests"):
        code = f"import sys, {module}; sys.exit(bool({HEAVY} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("written", ["0.5", ".5", "0.50", "5e-1"])
def test_runs_are_found_by_value(params: Params, written: str):
    found = requests.find_run(params, model="tiny", method="rrcm", sigma=float(written))

    assert found == RUN


@pytest.mark.parametrize(
    "wanted, said",
    [
        ({"model": "tinny"}, "Did you mean 'tiny'?"),
        ({"model": "b_deep", "sigma": 1.0}, "dvc repro export@b_deep-rrcm-s100"),
        ({"model": "b_deep", "sigma": 1.0}, "rrcm pull b_deep-rrcm-s100"),
        ({"method": "macer"}, "only tiny gaussian σ = 0.5, tiny rrcm σ = 0.5"),
        ({"sigma": 0.25}, "params.yaml has no tiny rrcm σ = 0.25"),
    ],
)
def test_a_run_that_is_not_there_says_what_is_and_how_to_get_it(params, wanted, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        requests.find_run(params, **{"model": "tiny", "method": "rrcm", "sigma": 0.5} | wanted)

    assert "\n" not in str(error.value)


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
    return requests.resolve({"model": "tiny", "sigma": sigma, "method": None} | options)


def test_a_request_without_options_is_params_yaml(here: Path, params: Params):
    found = resolve(n=None, subset=None, stop=None, strict=False)

    assert (found.sample, found.certify, found.report) == (
        params.sample,
        params.certify,
        params.report,
    )
    assert found.stopping == params.stopping[params.sample.stop]
    assert found.source.evaluation == params.evals[EVAL]
    assert found.source.votes == (Path(f"votes/{EVAL}.jsonl"),)
    assert (found.shard, found.budget, found.devices) == ("1/1", 0.0, ())


def test_options_replace_what_params_yaml_says(here: Path, params: Params):
    sample = {"n": 300, "subset": "first:5", "stop": "anytime", "batch_size": 7}

    found = resolve(**sample, alpha=0.01, eval_sigma=0.25, budget="90s", shard="2/3", devices=None)

    assert found.sample == replace(params.sample, **sample)
    assert found.stopping == params.stopping["anytime"]
    assert found.certify == replace(params.certify, alpha=0.01)
    assert (found.source.sigma, found.source.evaluation.run) == (0.25, RUN)
    assert (found.source.trained_at, found.source.votes) == (0.5, ())
    assert (found.budget, found.shard) == (90.0, "2/3")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop": "grit"}, "--stop grit: not in params.yaml's stopping"),
        ({"stop": "grit"}, "Did you mean 'grid'?"),
        ({"n": 0}, "n: must be positive"),
        ({"n": 9}, "9 draws can never certify at certify.alpha = 0.001"),
        ({"alpha": 1.5}, "alpha: must be in (0, 1), got 1.5"),
        ({"alpha": 1e-40}, "100 draws can never certify"),
        ({"eval_sigma": -1.0}, "sigma: must be positive"),
        ({"sigma": 0.25}, "params.yaml has no tiny rrcm σ = 0.25"),
        ({"budget": "10"}, "--budget: expected a time such as 90s, 10m or 1.5h, got '10'"),
        ({"budget": ""}, "--budget: expected"),
        ({"budget": "0s"}, "--budget: expected"),
        ({"budget": "-5s"}, "--budget: expected"),
        ({"budget": "5 s"}, "--budget: expected"),
        ({"budget": "5d"}, "--budget: expected"),
        ({"devices": "gpu"}, "--devices: expected GPU numbers or cpu, such as 0,1, got 'gpu'"),
        ({"devices": "0,"}, "--devices: expected"),
        ({"devices": "-1"}, "--devices: expected"),
        ({"devices": "0,1", "shard": "1/2"}, "--devices: makes shards of its own"),
        ({"model": None}, "give one of --model, --onnx and --timm; got none"),
        ({"onnx": "a.onnx"}, "got --model and --onnx"),
        ({"mean": ".5"}, "--mean does not go with --model"),
        ({"model": None, "onnx": "a", "eval_sigma": 1.0}, "--eval-sigma does not go with --onnx"),
        ({"model": None, "timm": "a", "output": "x"}, "--output does not go with --timm"),
        ({"model": None, "timm": "a", "size": "big"}, "--size: expected pixels, such as 224"),
        ({"model": None, "timm": "a", "std": "1,x"}, "--std: expected a number for each channel"),
        ({"model": None, "timm": "a", "sigma": 0.0}, "--sigma: must be positive, got 0"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for_is_refused_in_one_line(here: Path, options, said):
    with refused(ConfigError, said):
        resolve(**options)


def test_a_run_that_is_not_exported_says_how_to_get_it(here: Path):
    (here / f"onnx/{RUN}.onnx").unlink()

    with refused(BackendError, f"onnx/{RUN}.onnx is not here", f"`dvc repro export@{RUN}`"):
        resolve()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("0.5s", 0.5), ("007m", 420)]
)
def test_times_are_seconds(text: str, seconds: float):
    assert requests.seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "names"),
    [("0", ("0",)), ("0,1", ("0", "1")), ("cpu,cpu", ("cpu", "cpu")), ("10,cpu", ("10", "cpu"))],
)
def test_devices_are_numbers_or_cpu(text: str, names: tuple[str, ...]):
    assert requests.device_names(text, shard="1/1") == names


def test_no_device_is_this_process(here: Path):
    """What each process of several is told, so that it does not start others in turn."""
    assert resolve(devices="", shard="1/2").devices == ()


def test_presets_replace_only_what_is_nobodys_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    for name in ("one", "two"):
        (tmp_path / f"presets/{name}.yaml").write_text(f"name: {name}\n")

    presets.use("one", base=None, force=False)
    presets.use("two", base=None, force=False)
    assert (tmp_path / "params.yaml").read_text() == "name: two\n"

    (tmp_path / "params.yaml").write_text("name: mine\n")
    with pytest.raises(ConfigError, match="edited"):
        presets.use("one", base=None, force=False)
    assert (tmp_path / "params.yaml").read_text() == "name: mine\n"
    presets.use("one", base=None, force=True)
    with pytest.raises(ConfigError, match="Did you mean 'two'"):
        presets.use("twoo", base=None, force=True)
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
    command += ("--stop", "none")

    first = checkout.run(*command)
    (votes,) = checkout.path.glob(".rrcm/votes/*.jsonl")
    whole = votes.read_bytes()
    votes.rename(votes.with_suffix(".journal")).write_bytes(whole[: len(whole) // 2])
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
    assert f"{row.n_A} of {row.n} noisy draws" in answer
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
    page = (checkout.path / "report/table.md").read_text().splitlines()
    bounds = [line.split("|")[-3].strip() for line in page[2:]]
    assert any(acr.startswith("≥") for acr in bounds) and all(acr in report for acr in bounds)
    assert "the report: report/index.html" in report and "gaussian" in report

    (checkout.path / f"certificates/{EVAL}.csv").unlink()
    (checkout.path / f"onnx/{RUN}.onnx").unlink()

    assert "`dvc repro` makes it" in checkout.run("rrcm", "report", fails=True)
    doctor = checkout.run("rrcm", "doctor")
    assert f"--  onnx/{RUN}.onnx: not here; `dvc repro export@{RUN}`" in doctor
    assert "ok  onnx/tiny-gaussian-s050.onnx" in doctor


def test_results_that_are_there_are_analysed_without_drawing(finished: Workspace, tmp_path):
    other = "tiny-gaussian-s050-e050"
    compared = finished.run("rrcm", "compare", EVAL, other, "--radii", "0,0.25")
    files = [f"votes/{name}.jsonl" for name in (EVAL, other)]
    page = finished.run("rrcm", "report", *files, "--out", f"{tmp_path}/page")
    kinds = ("--certificate", "cohen", "--certificate", "two_class")
    derived = finished.run("rrcm", "derive", files[0], *kinds, "--out", f"{tmp_path}/again.csv")

    assert "20 images" in compared and "B: tiny-gaussian" in compared and "p, Holm" in compared
    assert (tmp_path / "page/index.html").exists() and "tiny-gaussian-s050" in page
    again = (tmp_path / "again.csv").read_bytes()
    assert again == (finished.path / f"certificates/{EVAL}.csv").read_bytes()
    assert "nothing was drawn" in derived
    wrong = finished.run("rrcm", "compare", EVAL, "no-such", fails=True)
    assert wrong.startswith("error: no-such: neither a file nor an evaluation")
    assert len(wrong.splitlines()) == 1


def test_every_error_of_ours_is_caught_by_the_command_line(monkeypatch):
    def fail() -> None:
        raise RrcmError("what, where, and the way out")

    monkeypatch.setattr(cli, "app", fail)

    with pytest.raises(SystemExit, match=r"^error: what, where, and the way out$"):
        cli.main()
