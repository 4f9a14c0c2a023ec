"""What somebody else made, or a machine at its end: one line before the work is done."""

import gzip
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import certificates, header, limited, refused, row
from lookalikes import declared
from PIL import Image
from survivors import until
from workspace import ROOT, Workspace

from rrcm.__main__ import main
from rrcm.certification import certify
from rrcm.certification.votes import records
from rrcm.core import ending, files
from rrcm.core.errors import DataError
from rrcm.data.splits import shards
from rrcm.inference.foreign import onnx as foreign

HUGE = 100 * 10**9  # bytes that a sparse file declares, and a disk does not have
LONG = 30.0  # seconds after which a command is said to hang


@contextmanager
def in_time(seconds: float = LONG):
    """The block ends in time, also where it waits for a pipe."""

    def late(number, frame):
        pytest.fail(f"still at work after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


NETWORK = """
<ir_version: 9, opset_import: ["" : 17]>
network (float[{shape}] x) => (float[N, 2] y)
<float[3, 2] w = {{-1, -0.6, -0.2, 0.2, 0.6, 1}}, int64 trips = {{{trips}}}, bool go = {{1}}>
{{
  mean = ReduceMean <axes = [2, 3], keepdims = 0> (x)
  first = MatMul (mean, w)
  y = Loop <body = body (int64 i, bool go_on, float s) => (bool go_out, float s_out) {{
    go_out = Identity (go_on)
    s_out = Neg (s)
  }}> (trips, go, first)
}}
"""


def network(path: Path, *, shape: str = "N, 3, 8, 8", trips: int = 0) -> None:
    """Scores of two classes, [N, 2], after a loop of so many trips."""
    onnx.save(onnx.parser.parse_model(NETWORK.format(shape=shape, trips=trips)), path)


def picture(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """A folder outside of any checkout, with a network and a picture."""
    folder = tmp_path / "here"
    folder.mkdir()
    network(folder / "net.onnx")
    picture(folder / "pictures" / "a.png")
    monkeypatch.chdir(folder)
    return folder


def said(monkeypatch, capsys, *arguments: str) -> str:
    """What `rrcm` refuses to do, as it says it: in one short line, in time, and nothing more."""
    monkeypatch.setattr(sys, "argv", ["rrcm", *arguments])
    with in_time(), pytest.raises(SystemExit) as caught:
        main()
    line = caught.value.code
    assert isinstance(line, str) and line.startswith("error: "), line
    assert "\n" not in line and len(line) <= 7 + ending.LONGEST
    beside = capsys.readouterr().err.splitlines()
    assert not [said for said in beside if said and "note: " not in said and "images" not in said]
    return line


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


NET = ("--onnx", "net.onnx", "--sigma", "0.5", "--n", "20", "--resize", "exact")
CERTIFY = ("certify", *NET, "--images", "pictures")
READERS = {  # the name of what is given, and the command that is to read it
    "votes": ("a.jsonl", ("report", "a.jsonl")),
    "certificates": ("a.csv", ("report", "a.csv")),
    "table": ("a.tsv", ("report", "a.tsv")),
    "derive": ("a.jsonl", ("derive", "a.jsonl")),
    "labels": ("a.csv", (*CERTIFY, "--labels", "a.csv")),
    "classes": ("a.txt", (*CERTIFY, "--classes", "a.txt")),
    "onnx": ("a.onnx", ("certify", "--onnx", "a.onnx", "--sigma", "1", "--images", "pictures")),
    "image": ("a.png", ("predict", *NET, "--image", "a.png")),
    "cifar10": ("a.tar.gz", ("data", "cifar10", "--no-verify", "--from", "a.tar.gz")),
    "params": ("params.yaml", ("check",)),
    "pictures": ("pictures/a.png", CERTIFY),
}


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name if path.parent == Path.cwd() else str(path))


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "a pipe, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device, not a file"),
    "socket": (bound, "a socket, not a file"),
    "folder": (Path.mkdir, "a folder"),
    "link to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "100 GB of nothing": (sparse, "100,000,000,000 bytes"),
}
CASES = [*((reader, "pipe") for reader in READERS), *(("votes", kind) for kind in KINDS)]
CASES += [("onnx", "100 GB of nothing"), ("image", "device")]


@pytest.mark.parametrize(("reader", "kind"), [*dict.fromkeys(CASES)])
def test_what_is_no_file_is_refused(reader, kind, here, monkeypatch, capsys):
    """By every option and argument that takes one; every kind by one of them."""
    name, command = READERS[reader]
    make, words = KINDS[kind]
    (here / name).unlink(missing_ok=True)
    make(Path(name))
    before = listing(here)

    line = said(monkeypatch, capsys, *command)

    assert name.partition("/")[0] in line and words in line
    assert listing(here) == before


DEEP = "[" * 5_000
LABEL = b"file,label\na.png," + b"x" * 10**7 + b"\n"
CONTENTS = {  # what a file holds, the command that reads it, and what is said
    "brackets of YAML": ("params.yaml", f"data: {DEEP}".encode(), ("check",), "nested too deeply"),
    "a long YAML": ("params.yaml", b"#" * 2**21, ("check",), "2,097,152 bytes"),
    "brackets of JSON": ("a.jsonl", DEEP.encode(), ("report", "a.jsonl"), "not the header"),
    "a long label": ("a.csv", LABEL, (*CERTIFY, "--labels", "a.csv"), "is no class"),
    "a long cell": ("a.tsv", b"idx\t" * 10**6, ("report", "a.tsv"), "no column 'label'"),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_what_a_file_holds_is_refused(case, here, monkeypatch, capsys):
    name, content, command, words = CONTENTS[case]
    (here / name).write_bytes(content)
    before = listing(here)

    line = said(monkeypatch, capsys, *command)

    assert name in line and words in line
    assert listing(here) == before


def test_brackets_in_what_a_checkout_holds_are_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(DEEP)

    with refused(DataError, "config.json: damaged"):
        files.read_json(path)


def test_a_gzip_bomb_is_not_unpacked(here, monkeypatch, capsys):
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    zeros = bytes(2**20)
    with (here / "a.tar.gz").open("wb") as file:
        for _ in range(2**9):  # half a gigabyte
            file.write(packer.compress(zeros))
        file.write(packer.flush())

    line = said(monkeypatch, capsys, "data", "cifar10", "--no-verify", "--from", "a.tar.gz")

    assert "unpacks to more than" in line


def test_a_sparse_file_in_an_archive_is_not_read(here, monkeypatch, capsys):
    """Its header declares 8 GB, of which the archive holds nothing."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w"):
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.type = tarfile.GNUTYPE_SPARSE
        head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
        head[483:495] = b"100000000000"  # octal: the size that it would have
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        packed.write(head)
    (here / "a.tar.gz").write_bytes(gzip.compress(packed.getvalue() + bytes(10240)))

    said(monkeypatch, capsys, "data", "cifar10", "--no-verify", "--from", "a.tar.gz")


def test_an_array_that_declares_more_than_its_file_holds_is_refused(tmp_path):
    declared = {"descr": shards.KIND.descr, "fortran_order": False, "shape": (10**12,)}
    path = tmp_path / shards.ROWS
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, declared)

    with refused(DataError, "images.npy: damaged"):
        shards._rows(path)


@pytest.mark.parametrize("command", [CERTIFY, ("predict", *NET, "--image", "pictures/a.png")])
def test_a_picture_of_100000_pixels_a_side_is_refused(command, here, monkeypatch, capsys):
    (here / "pictures" / "a.png").write_bytes(declared(100_000, 100_000))

    line = said(monkeypatch, capsys, *command)

    assert "a.png: more than" in line and "pixels" in line


@pytest.mark.parametrize("shape", ["N, 3, 100000, 100000", "100000000, 3, 8, 8"])
def test_an_onnx_file_whose_input_is_80_gb_is_refused(shape, here, monkeypatch, capsys):
    network(here / "net.onnx", shape=shape)

    line = said(monkeypatch, capsys, *CERTIFY)

    assert "net.onnx: does not run at" in line and "of a batch" in line


def test_a_loop_that_does_not_end_is_ended(here, monkeypatch, capsys):
    network(here / "net.onnx", trips=2**62)
    monkeypatch.setattr(foreign, "SECONDS", 0.5)

    line = said(monkeypatch, capsys, *CERTIFY)

    assert "no scores of 2 pictures in 1 s; does it loop for ever?" in line


def done(monkeypatch, capsys, *arguments: str) -> str:
    """What `rrcm` prints, having done what was asked."""
    monkeypatch.setattr(sys, "argv", ["rrcm", *arguments])
    with in_time(), pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code in (0, None), caught.value.code
    return capsys.readouterr().out


NAMES = ("a$b_{c$.csv", "$$.csv", "_a.csv", "x" * 240 + ".csv", "a b'\"&<.csv")


def test_any_name_is_reported(here, monkeypatch, capsys):
    """A `$` begins no mathematics, and a long name leaves room for what is added to it."""
    for name in (*NAMES, "6.csv"):  # more than have a legend of their own
        certify.write(certificates([0, 1], [0.25, 0.5]), here / name)

    done(monkeypatch, capsys, "report", *NAMES, "6.csv", "--out", "$page$")

    assert (here / "$page$" / "index.html").stat().st_size > 1000


def test_a_name_that_is_not_utf8_is_refused(here, monkeypatch, capsys):
    line = said(monkeypatch, capsys, "report", os.fsdecode(b"a\xff.csv"))

    assert line == r"error: 'a\udcff.csv': a name that is not UTF-8; rename it"


def test_pictures_whose_name_is_not_utf8_are_left_out(here, monkeypatch, capsys):
    picture(here / "pictures" / os.fsdecode(b"\xff.png"))
    (here / "pictures" / "loop.png").symlink_to("loop.png")
    os.mkfifo(here / "pictures" / "pipe.png")

    shown = done(monkeypatch, capsys, *CERTIFY)

    assert "left out: 3 of 4 files" in shown and "a name that is not UTF-8" in shown
    assert "pipe.png: a pipe, not a file" in shown


def test_a_name_too_long_for_results_is_refused_before_anything_is_drawn(here, monkeypatch, capsys):
    (here / "pictures").rename(here / ("p" * 240))

    line = said(monkeypatch, capsys, "certify", *NET, "--images", "p" * 240)

    assert "File name too long; give it a shorter one" in line
    assert not [*here.glob(".rrcm/votes/*.jsonl")]


def test_a_folder_with_a_link_to_itself_is_refused(here, monkeypatch, capsys):
    """A class folder, and a folder below `--images`."""
    (here / "data").mkdir()
    picture(here / "data" / "cat" / "a.png")
    for name in ("up", "again"):
        (here / "data" / "cat" / name).symlink_to("..")
    (here / "pictures" / "up").symlink_to("..")

    line = said(monkeypatch, capsys, "data", "folder", "--from", "data")

    assert "data/cat/" in line and "whose pictures would count twice" in line
    line = said(monkeypatch, capsys, *CERTIFY)
    assert "pictures/up/pictures" in line and "whose pictures would count twice" in line


def test_a_long_name_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / ("ü" * 127)
    files.write_text(path, "a")

    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(OSError, match="too long"):
        files.write_text(tmp_path / ("x" * 256), "a")


def test_a_full_disk_stops_votes_and_room_lets_them_go_on(here, monkeypatch, capsys):
    for number in range(40):
        picture(here / "pictures" / f"{number}.png")
    asked = (*CERTIFY, "--seed", "1", "--stop", "anytime")
    whole = done(monkeypatch, capsys, *asked)
    (votes_file,) = here.glob(".rrcm/votes/*.jsonl")
    wanted = votes_file.read_bytes()
    votes_file.unlink()
    with limited(3000):
        line = said(monkeypatch, capsys, *asked)
    (journal,) = here.glob(".rrcm/votes/*.journal")
    kept = journal.read_bytes()

    assert f"{journal.relative_to(here)}: File too large; make room and run the same" in line
    assert 1000 < len(kept) <= 3000
    assert done(monkeypatch, capsys, *asked) == whole
    assert votes_file.read_bytes() == wanted
    assert kept[: kept.rindex(b"\n") + 1].split(b"\n")[1] in wanted


@pytest.mark.parametrize("command", [("report", "a.csv"), ("derive", "a.jsonl")])
def test_a_full_disk_leaves_no_half_of_a_result(command, here, monkeypatch, capsys):
    certify.write(certificates([0, 1], [0.25, 0.5]), here / "a.csv")
    records.write(here / "a.jsonl", header(images=1), [row(0, 0, [10, 0, 0], [40, 0, 0])])
    with limited(10):
        line = said(monkeypatch, capsys, *command)

    assert "File too large; make room and run the same command again" in line
    assert {
        path for path in here.rglob("*") if path.is_file() and path.stat().st_size <= 10
    } == set()


def start(*arguments: str, before: tuple[str, ...] = (), stdout: int = subprocess.PIPE):
    """`rrcm` as a process of its own, in the folder that is current."""
    return subprocess.Popen(
        [*before, sys.executable, "-m", "rrcm", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_interrupt_is_quiet_and_votes_go_on(here, monkeypatch):
    """Once votes were saved: during an import, of which some come late, it says nothing."""
    monkeypatch.setenv("RRCM_SAVE_SECONDS", "0.1")
    asked = (*CERTIFY, "--n", "400000", "--seed", "1", "--stop", "none")
    process = start(*asked)
    kept = ".rrcm/votes/*.journal"
    until(lambda: any(p.read_bytes().count(b"\n") > 1 for p in here.glob(kept)), seconds=60)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=LONG)

    assert process.returncode == ending.INTERRUPTED
    assert error.splitlines()[-1] == "interrupted; what was saved is kept, the same command goes on"
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("module", "imported"), [("rrcm", "typer"), ("pipeline.stages.report", "pandas")]
)
def test_an_interrupt_during_an_import_is_silent(module, imported, tmp_path):
    """Also in a package that catches it, and fails at what it has not imported."""
    (tmp_path / f"{imported}.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
        "raise RuntimeError('half of it is missing')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", module, "doctor"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=LONG,
    )

    assert (done.returncode, done.stderr) == (ending.INTERRUPTED, "")


@pytest.mark.parametrize("output", ["closed pipe", "/dev/full"])
def test_nobody_reads_what_is_printed(output):
    if output == "closed pipe":
        ours, theirs = os.pipe()
        os.close(ours)
    else:
        theirs = os.open(output, os.O_WRONLY)
    process = start("--help", stdout=theirs)
    os.close(theirs)
    _, error = process.communicate(timeout=LONG)

    assert process.returncode == 1
    quiet = output == "closed pipe"
    assert error == ("" if quiet else f"error: {os.strerror(28)}{ending.HINTS[28]}\n")


def test_a_folder_that_may_only_be_read_is_refused_before_anything_is_drawn(here):
    as_user = ()
    if os.geteuid() == 0:  # whom no permission binds
        if not shutil.which("setpriv"):
            pytest.skip("nothing here starts a process as another user")
        as_user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
        for folder in here.parents:
            if folder.stat().st_mode & 0o005 != 0o005 and "pytest" in str(folder):
                folder.chmod(0o755)
    here.chmod(0o555)
    process = start(*CERTIFY, before=as_user)
    _, error = process.communicate(timeout=LONG)

    assert process.returncode == 1
    assert error.splitlines()[-1] == f"error: .rrcm: {os.strerror(13)}{ending.HINTS[13]}"
    assert "Traceback" not in error


FULL = """
import resource, runpy
from rrcm.models.trained.base import checkpoint
save = checkpoint.save
def full(*arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    save(*arguments)
checkpoint.save = full
runpy.run_module("pipeline.stages.pretrain", run_name="__main__")
"""


def test_a_training_that_cannot_be_saved_ends_in_a_line_of_its_own(checkout: Workspace):
    """Below its bar; with room it begins again."""
    checkout.edit(lambda p: p["pretrain"]["tiny"].update(seed=5))
    stage = {"DVC_STAGE": "pretrain@tiny", "RRCM_SAVE_SECONDS": "0"}
    *before, last = checkout.run("python", "-c", FULL, fails=True, **stage).splitlines()

    assert last.startswith("error: .rrcm/resume/pretrain@tiny/")
    assert "/state.safetensors: File too large; make room and run the same command again" in last
    assert before and "Traceback" not in "".join(before)
    assert not list(checkout.path.glob(".rrcm/resume/pretrain@tiny/*/.*.part"))
    checkout.stage("pretrain@tiny")
