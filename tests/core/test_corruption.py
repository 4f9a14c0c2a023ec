"""No damaged file is taken for a good one, and foreign names are only ever text."""

import argparse
import itertools
import json
import os
import pickle
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import torch
from builders import header, refused, row
from hypothesis import given
from hypothesis import strategies as st
from numpy._core.multiarray import scalar
from safetensors.torch import save_file

from benchmarks.drills import corruption
from rrcm.analysis.presentation.markup import markdown
from rrcm.certification import certify
from rrcm.certification.votes import records
from rrcm.cli.commands import on_demand
from rrcm.cli.project import Project
from rrcm.core.errors import CheckpointError, VotesError, printable
from rrcm.core.files import cell, uncell
from rrcm.models import state_dict
from rrcm.models.trained.base import checkpoint

NASTY = [
    "\x1b[2J",
    "a\nb",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "'=x",
    "a\\nb",
    "\u202egpj.exe",
    "\udcff",
]


def test_damage_is_refused_or_changes_nothing():
    """Two tries of each kind; `python -m benchmarks.drills.corruption` makes more."""
    text, wrong = corruption.table(2)

    assert wrong == []
    assert len(text.splitlines()) > 20


def test_a_checkpoint_without_a_digest_is_refused(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors", {"params": "{}"})

    with refused(
        CheckpointError, "model.safetensors: damaged, or not written here", "`rrcm repro`"
    ):
        checkpoint.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_fifo_is_refused_at_once(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    os.mkfifo(path)

    with corruption.limited(10), refused(CheckpointError, f"{path}: ", "a pipe, not a file"):
        state_dict.find(path, (), hint="")


class Says:
    """An object whose pickle calls ``reduced[0]`` and sets a state, as any file may say."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def smuggled(owned: str) -> dict[str, tuple[object, str]]:
    """Objects that make the folder ``owned``, within types that a checkpoint may hold; the call."""
    make, mkdir = Says(os.mkdir, (owned,)), "posix.mkdir"
    arrays = "numpy._core.multiarray._reconstruct"
    return {
        "option": (argparse.Namespace(lr=make), mkdir),
        "__setstate__": (Says(argparse.Namespace, (), {"__setstate__": os.mkdir}), mkdir),
        "_get_kwargs": (Says(argparse.Namespace, (), {"_get_kwargs": make}), mkdir),
        "object array": (np.array([make]), arrays),
        "object scalar": (Says(scalar, (np.dtype("O"), make)), mkdir),
        "dtype": (Says(np.dtype, (make,)), mkdir),
        "subclass": (Says(type, ("N", (argparse.Namespace,), {})), "type"),
        "module": (torch.nn.Sequential(), "torch.nn.modules.container.Sequential"),
        "defaultdict": (defaultdict(list), "collections.defaultdict"),
    }


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("case", smuggled(""))
def test_what_a_checkpoint_may_hold_smuggles_nothing(tmp_path, case, old):
    held, call = smuggled(str(tmp_path / "owned"))[case]
    path = tmp_path / "net.pth"
    file = {"state_dict": {"a": torch.ones(1)}, "args": held}
    torch.save(file, path, _use_new_zipfile_serialization=not old)

    with refused(CheckpointError, f"{path}: it calls {call}, and is not executed"):
        state_dict.find(path, ["state_dict"], hint="")
    path.write_bytes(pickle.dumps(file))  # without PyTorch's form
    with refused(CheckpointError, f"{path}: "):
        state_dict.find(path, ["state_dict"], hint="")
    assert not (tmp_path / "owned").exists()
    if case == "option":  # the control: others execute it
        pickle.loads(path.read_bytes())
        assert (tmp_path / "owned").exists()


def test_what_stands_beside_the_weights_is_not_made(tmp_path):
    """Options and numbers of NumPy are passed over: not even their own constructors run."""
    path, loop = tmp_path / "net.pth", dict[str, object]()
    twice = Says(argparse.Namespace, (), {"__setstate__": bytearray})
    odd = Says(scalar, (np.dtype("O"), b"no object"))
    loop |= {"net": loop, "args": twice, "best": odd, "top": np.float64(0.5)}
    torch.save(loop, path)

    held = state_dict._unpickled(path)

    assert {type(held[key]).__name__ for key in ("args", "best", "top")} == {"Namespace", "scalar"}
    assert not any(isinstance(one, argparse.Namespace | np.generic) for one in held.values())
    with refused(CheckpointError, "expected a state dict", "'net' is a dict"):
        state_dict.find(path, ["net"], hint="")


@given(st.text() | st.sampled_from(NASTY))
def test_cells_are_no_formulas_and_are_read_as_they_were(text):
    written = cell(text)

    assert uncell(written) == text
    assert written.isprintable() and not written.startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize("name", NASTY)
def test_names_of_files_are_text_in_tables(tmp_path, name):
    table = certify.certify(
        header(images=1), [row(0, 0, [10, 0, 0], [40, 0, 0])], certificates=["cohen"], alpha=0.001
    ).assign(file=name)
    certify.write(table, tmp_path / "a.csv")
    shown = markdown(pd.DataFrame({"method": [f"{name}|<b>`x`"]}))

    assert certify.read(tmp_path / "a.csv")["file"].tolist() == [name]
    assert len((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()) == 2
    assert shown.count("\n") == 3 and not {*"<>`\x1b\u202e"} & {*shown}
    assert shown.splitlines()[2].count("|") == 2
    assert printable(name).isprintable()


def test_a_header_names_no_place_outside_the_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.jsonl"
    drawn = [row(0, 0, [10, 0, 0], [40, 0, 0])]
    places = ("/tmp/x", "../x", "..", "a/../../b", "a\nb", "\x1b[2J")
    records.write(path, header(images=1), drawn)
    first, *rest = path.read_text().splitlines(keepends=True)
    for key, value in itertools.product(("run", "subset", "split", "stop"), places):
        named = json.dumps(json.loads(first) | {key: value}) + "\n"
        path.write_text("".join([named, *rest]))
        with refused(VotesError, f"{path}:1: {key} is "):
            records.read(path)
    assert [*tmp_path.rglob("*")] == [path]


def test_certificates_of_an_honest_header_are_in_the_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.jsonl"
    named = header(images=1, run="net \\x1b.v2 (1)-cats", backend="foreign/onnx")
    records.write(path, named, [row(0, 0, [10, 0, 0], [40, 0, 0])])

    _, written = on_demand.certified(["cohen"], *records.read(path), Project())

    assert written.parent.name == "results"
    assert written.name.startswith("net \\x1b.v2 (1)-cats-e0.5")
