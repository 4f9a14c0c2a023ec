"""A network of the user's own by `--module`, and pictures of other searches by `--candidates`."""

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pytest
import torch
from builders import export_elsewhere, refusal, refused
from PIL import Image

import rrcm
from rrcm.certification import certify
from rrcm.certification.attacking.search import Search
from rrcm.certification.votes import records
from rrcm.cli.commands import attack, on_demand, predict
from rrcm.cli.options import Options
from rrcm.cli.project import Project
from rrcm.core.errors import BackendError, ConfigError, DataError
from rrcm.inference.foreign import module

pytestmark = pytest.mark.usefixtures("unforked")
CODE = """
from pathlib import Path
from urllib.request import urlopen

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

class Remote(nn.Module):
    def forward(self, x):
        sent = x.detach().numpy().tobytes()
        got = urlopen(Path("address").read_text(), sent).read()
        return torch.frombuffer(bytearray(got), dtype=torch.float32).reshape(-1, 2)

def endpoint():
    return Remote().eval()
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
    request = Project().request(options)
    return attack.attack(request, Project(), Search(), candidates=Path("found"))


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


def test_votes_are_those_of_the_same_network_in_python(here: Path):
    options = Options(module="net.py:make_net", images=Path("photos"), radii="0,0.2", **ASKED)
    said = on_demand.certify(Project().request(options), Project())
    (votes,) = re.findall("^votes: (.*)$", said, re.MULTILINE)
    pictures = np.array([77, 178], np.uint8)[:, None, None, None] * np.ones((1, 4, 4), np.uint8)
    asked = {"n": 200, "alpha": 0.01, "seed": 1, "progress": False}
    named = Options(module="net.py:make_net", radii="0,0.2", **ASKED)
    one = predict.predict(Project().request(named), "photos/1/light.png")
    in_memory = rrcm.smooth(module.own("net.py:make_net"), sigma=0.25, classes=2)
    for smoothed in (in_memory, rrcm.smooth("net.py:make_net", sigma=0.25, shape=(1, 4, 4))):
        answers = smoothed.certify(pictures, labels=[0, 1], radii=[0, 0.2], **asked)
        assert answers.rows == records.read(Path(votes))[1]
    (alone,) = in_memory.certify(pictures[1:], labels=[1], radii=[0, 0.2], **asked)

    radius = certify.printed(alone.radius, certify.DOWN, places=4)
    assert f"light.png: class 1, certified within an l2 radius of {radius} " in one


@pytest.fixture
def served(here: Path):
    """An endpoint that gives the scores of `Bright` for noisy pictures of float32."""

    class Scores(BaseHTTPRequestHandler):
        def do_POST(self):
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            side = np.frombuffer(sent, np.float32).reshape(-1, 16).mean(axis=1) - 0.5
            self.send_response(200)
            self.end_headers()
            self.wfile.write(np.stack([-side, side], axis=1).astype(np.float32).tobytes())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Scores) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        Path("address").write_text(f"http://127.0.0.1:{server.server_address[1]}")
        yield
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("classifier", "way"),
    [
        ({"module": "net.py:make_net"}, {"base": True}),
        ({"module": "net.py:endpoint"}, {"foolbox": "HopSkipJumpAttack"}),
        ({"onnx": "net.onnx"}, {"surrogate": "net.py:make_net"}),
        ({"onnx": "net.onnx"}, {"foolbox": "HopSkipJumpAttack"}),
    ],
)
def test_anything_is_attacked_and_one_table_has_both_sides(served, classifier, way):
    if "foolbox" in way:
        pytest.importorskip("foolbox")
    if "onnx" in classifier:
        net = module.own("net.py:make_net")
        export_elsewhere(net, torch.zeros(2, 1, 4, 4), Path("net.onnx"), fixed=True)
        classifier = classifier | {"size": None, "channels": None}
    asked = ASKED | classifier | {"radii": "0,0.5,0.9,1.2"}
    how = Search(copies=4, steps=4, restarts=1)
    request = Project().request(Options(images=Path("photos"), **asked))
    said = attack.attack(request, Project(), how, **way)
    (table,) = re.findall("^this table: (.*)$", said, re.MULTILINE)
    got, found = pd.read_csv(table), certify.read(Path(f"{Path(table).parent}.csv"))
    boundary = np.array([0.5 - 77 / 255, 178 / 255 - 0.5]) * 4

    assert (found["attacked"] > boundary).all() and (found["attacked"] < 2 * boundary).all()
    assert (got["certified"] <= got["empirical"]).all() and got["certified"][0] == 1
    assert got["empirical"].tolist()[:2] == [1, 1] and (got["clean"] == 1).all()
    np.testing.assert_allclose(got["linf"], got["radius"] / 4, atol=1e-6)
    assert "ℓ∞" in said and "ℓ∞" in Path(table).with_name("index.html").read_text()
    if "base" in way:
        assert (found["attacked_base"] > boundary).all() and got["base"].tolist()[:2] == [1, 1]
        assert (found["attacked_base"] < 1.6 * boundary).all()


def test_what_a_search_cannot_do_is_said(here: Path):
    pytest.importorskip("foolbox")
    net = module.own("net.py:make_net")
    export_elsewhere(net, torch.zeros(2, 1, 4, 4), Path("net.onnx"), fixed=True)
    asked = ASKED | {"onnx": "net.onnx", "size": None, "channels": None}
    request = Project().request(Options(images=Path("photos"), **asked))
    for way, error, words in (
        ({"foolbox": "HopSkipJump"}, ConfigError, "Did you mean 'HopSkipJumpAttack'?"),
        ({"foolbox": "DatasetAttack"}, BackendError, "--foolbox DatasetAttack: "),
        ({"foolbox": "L2FMNAttack"}, BackendError, "HopSkipJumpAttack and BoundaryAttack need no"),
        ({"surrogate": "no.py:net"}, BackendError, "--surrogate: no.py: no such file"),
        ({}, BackendError, "by --foolbox HopSkipJumpAttack, follow those of another network by"),
    ):
        with refused(error, words):
            attack.attack(request, Project(), Search(), **way)


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        ("net.py", ConfigError, "expected FILE.py:FUNCTION, as net.py:make_net, got"),
        ("no.py:make", BackendError, "no.py: no such file"),
        ("net.py:no", BackendError, "net.py:no: the file has no such function."),
        ("net.py:fails", BackendError, "net.py:fails: KeyError: 'weights' (line 17)"),
        ("net.py:number", BackendError, "net.py:number: returns int, not a network"),
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

    assert said.startswith("error: net.py:fails: KeyError") and "\n" not in said.strip()
