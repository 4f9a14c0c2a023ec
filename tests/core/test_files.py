"""Files are whole or absent; components are found by name; errors are one family."""

import hashlib
import inspect
import signal
import subprocess
import sys

import pytest
from builders import refused

from rrcm.core import errors, files, registry
from rrcm.core.errors import ConfigError, RrcmError

ERRORS = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, RrcmError)]


def test_a_file_is_replaced_when_its_block_succeeds(tmp_path):
    path = tmp_path / "new folder" / "file"
    for text in ("old", "new"):
        files.write_text(path, text)

    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]
    with files.atomic(path) as one, files.atomic(path) as other:  # others would link it elsewhere
        assert one != other, "its name can be guessed"
        one.touch()
        other.touch()


@pytest.mark.parametrize("old", ["old", None])
def test_a_failing_block_leaves_what_was_there_and_nothing_else(tmp_path, old):
    path = tmp_path / "file"
    if old is not None:
        path.write_text(old)

    with pytest.raises(ZeroDivisionError), files.atomic(path) as part:
        part.write_text("half of")
        raise ZeroDivisionError

    assert [p.read_text() for p in tmp_path.iterdir()] == ([] if old is None else [old])


def test_a_killed_process_leaves_the_old_bytes(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    script = (
        "import os, signal, sys; from pathlib import Path; from rrcm.core.files import atomic\n"
        "with atomic(Path(sys.argv[1])) as part:\n"
        "    part.write_text('half of')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )

    ended = subprocess.run([sys.executable, "-c", script, path], check=False).returncode

    assert (ended, path.read_text()) == (-signal.SIGKILL, "old")


def test_the_same_value_is_the_same_bytes(tmp_path):
    """In the order of its keys, in UTF-8, with one kind of line end."""
    files.write_json(tmp_path / "a", {"b": [1, 0.1], "a": "σ"})
    files.write_text(tmp_path / "b", "σ\n")

    assert (tmp_path / "a").read_bytes() == (
        b'{\n  "b": [\n    1,\n    0.1\n  ],\n  "a": "\\u03c3"\n}\n'
    )
    assert (tmp_path / "b").read_bytes() == b"\xcf\x83\n"


def test_what_json_does_not_know_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a", {"loss": float("nan")})

    assert not list(tmp_path.iterdir())


def test_the_digest_is_that_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(256)) * 9999)

    assert files.sha256(tmp_path / "a") == hashlib.sha256(bytes(range(256)) * 9999).hexdigest()


def test_components_are_the_public_files_of_a_folder():
    for kind, some in (
        ("backends", {"onnx", "torch"}),
        ("certificates", {"cohen"}),
        ("methods", {"gaussian", "consistency", "rrcm"}),
        ("networks", {"vit"}),
    ):
        names = registry.names(kind)

        assert some <= set(names) and names == sorted(names)
        assert not [name for name in names if name.startswith("_")]


def test_an_unknown_component_is_told_which_there_are():
    with refused(ConfigError, "rrcm/training/methods/ has no 'gausian'", "consistency, gaussian"):
        registry.load("methods", "gausian")
    with refused(ConfigError, "Did you mean 'gaussian'?"):
        registry.load("methods", "gausian")


def test_only_components_can_be_loaded():
    for name in ("_torchvision", "../errors", "__init__", ""):
        with refused(ConfigError, "rrcm/models/networks/ has no"):
            registry.load("networks", name)


def test_errors_are_one_family_and_none_of_pythons():
    """So that no `except ValueError` swallows what the user should read."""
    assert RrcmError.__bases__ == (Exception,)
    assert all({*c.__bases__} < {*ERRORS} for c in ERRORS if c is not RrcmError)
