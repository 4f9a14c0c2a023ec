"""Code that takes a device keeps to it: on one that is not the CPU, results have the CPU's bits.

Under autocast, which chooses types as on CUDA, they have the CPU's types.

No GPU is needed: `elsewhere` has a device whose tensors refuse to meet those of the CPU.
"""

import json
import subprocess
import sys
from pathlib import Path

import elsewhere_cases
import pytest


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What each case says, in a process of its own: the device cannot be removed from one."""
    script = Path(elsewhere_cases.__file__)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [*elsewhere_cases.CASES, *elsewhere_cases.NARROW])
def test_every_tensor_is_where_it_should_be(name: str, told: dict[str, str]):
    assert told[name] == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all on the CPU", "aten::mm: on the CPU"),
        ("left on the CPU", "aten::add: tensors on gpu and on the CPU"),
        ("two types", "expected dtype c10::BFloat16"),
        ("no kernel", "aten.to_mkldnn.default: has no CUDA kernel"),
        ("another result", "other bits or types than on the CPU"),
    ],
)
def test_the_device_is_not_the_cpu(name: str, words: str, told: dict[str, str]):
    assert words in told[name]
