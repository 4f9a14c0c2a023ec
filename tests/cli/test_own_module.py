"""A network of the user's own by `--module`, and pictures of other searches by `--candidates`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import export_elsewhere, refusal, refused
from PIL import Image

from rrcm.certification import certify
from rrcm.certification.attacking.search import Search
from rrcm.cli.commands import attack, on_demand
from rrcm.cli.options import Options
from rrcm.cli.project import Project
from rrcm.core.errors import BackendError, ConfigError, DataError
from rrcm.inference.foreign import module

CODE = """
import torch
from torch import nn

class Bright(nn.Module):
    def forward(self, x):
        side = x.flatten(1).mean(1) - 0.5
        return torch.stack([-side, side], dim=1)

def make_net():
    return Bright().eval()

def fails():
    return {}["weights"]

def number():
    return 3
"""
ASKED = {"size": "4", "channels": 1, "sigma": 0.25, "n": 200, "alpha": 0.01, "seed": 1}


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(CODE)
    for name, level in (("0/dark", 77), ("1/light", 178)):
        Path("photos", name).parent.mkdir(parents=True)
        Image.fromarray(np.full((4, 4), level, np.uint8)).save(f"photos/{name}.png")
    return tmp_path


def judged(**classifier) -> str:
    options = Options(images=Path("photos"), **ASKED | classifier)
    return attack.attack(Project().request(options), Project(), Search(), Path("found"))


def test_an_own_network_is_certified_and_candidates_are_judged(here: Path):
    options = Options(module="net.py:make_net", images=Path("photos"), **ASKED)
    said = on_demand.certify(Project().request(options), Project())
    pixels = np.array([77, 178], np.float32)[:, None, None, None] / 255
    Path("found").mkdir()
    over, short = (np.broadcast_to(value, (2, 1, 4, 4)) for value in (1 - pixels, pixels * 0.9))
    np.save("found/a.npy", over.astype(np.float32))
    np.save("found/b.npy", short.astype(np.float32))
    table = judged(module="net.py:make_net")
    export_elsewhere(module.own("net.py:make_net"), torch.zeros(2, 1, 4, 4), Path("net.onnx"),
                     fixed=True)  # fmt: skip
    file = judged(onnx="net.onnx", size=None, channels=None)

    assert "net-make_net-photos" in said and "2 images, n0 = 100, n = 200" in said
    for printed in (table, file):
        assert "alpha = 0.01; 4 candidates of found" in printed
        (csv,) = [line for line in printed.splitlines() if line.startswith("certificates and")]
        found = certify.read(Path(csv.split(": ")[1]))
        across = np.abs(over - pixels).reshape(2, -1)
        np.testing.assert_allclose(found["attacked"], np.linalg.norm(across, axis=1), atol=1e-5)
        assert found["attacked_to"].tolist() == [1, 0] and (found["radius"] > 0).all()


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        ("net.py", ConfigError, "--module: expected FILE.py:FUNCTION, as net.py:make_net, got"),
        ("no.py:make", BackendError, "--module no.py: no such file"),
        ("net.py:no", BackendError, "--module net.py:no: AttributeError: "),
        ("net.py:fails", BackendError, "--module net.py:fails: KeyError: 'weights' (line 14)"),
        ("net.py:number", BackendError, "--module net.py:number: returns int, not a network"),
    ],
)
def test_what_is_wrong_with_a_module_names_file_and_function(here: Path, place, error, words):
    with refused(error, words):
        module.own(place)


def test_what_is_wrong_with_candidates_names_the_file(here: Path):
    with refused(DataError, "--candidates found: no such folder"):
        judged(module="net.py:make_net")
    Path("found").mkdir()
    with refused(DataError, "--candidates found: no .npy files of pictures"):
        judged(module="net.py:make_net")
    np.save("found/a.npy", np.zeros((3, 1, 4, 4), np.float32))
    with refused(DataError, "--candidates found/a.npy: candidates: 3 pictures for 2 images"):
        judged(module="net.py:make_net")
    Path("found/a.npy").write_bytes(b"x")
    with refused(DataError, "--candidates found/a.npy: "):
        judged(module="net.py:make_net")
    with refused(ConfigError, "--module: give the --size of pictures"):
        judged(module="net.py:make_net", size=None)


def test_the_command_takes_a_module(here: Path):
    said = refusal(here, "rrcm", "certify", "--module", "net.py:fails", "--size", "4", "--sigma",
                   "0.25", "--images", "photos")  # fmt: skip

    assert said.startswith("error: --module net.py:fails: KeyError") and "\n" not in said.strip()
