"""Two processes that share every batch train what one process would."""

import subprocess
import sys

import pytest
import torch
import twoprocs
from timm.layers import BatchNormAct2d
from torch import nn
from workspace import ROOT

from rrcm.core.errors import ConfigError
from rrcm.models.trained.base import checkpoint
from rrcm.training.engine import distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes wrote, on a CPU."""
    folder = tmp_path_factory.mktemp("two processes")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(ROOT / "tests/support/twoprocs.py"), str(folder)],
        cwd=ROOT,
        env={
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "error::FutureWarning",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return [checkpoint.load(folder / f"found-{rank}")[0] for rank in range(2)]


@pytest.mark.parametrize("name", [*twoprocs.PRETRAININGS, *twoprocs.RECIPES])
def test_two_processes_reach_the_weights_of_one(found, name):
    """And of each other, to the bit: parameters, statistics, target, log, validation score."""
    alone = twoprocs.trained(name)

    for key, tensor in alone.items():
        both = [tensors[f"{name}/{key}"] for tensors in found]
        assert torch.allclose(both[0], tensor, rtol=1e-4, atol=2e-6), key
        assert torch.equal(*both), key


@pytest.mark.parametrize("norm", twoprocs.NORMS)
def test_batchnorm_sees_the_rows_of_all_processes(found, norm):
    """Outputs, gradients and statistics of torch's BatchNorm on the whole batch, in float64."""
    whole = twoprocs.normalised(norm, slice(None))

    for name in ("y", "x"):
        parts = torch.cat([tensors[f"{norm}/{name}"] for tensors in found])
        torch.testing.assert_close(parts, whole[name])
    for name in ("w", "b"):  # which DistributedDataParallel adds up
        torch.testing.assert_close(sum(t[f"{norm}/{name}"] for t in found), whole[name])
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        for tensors in found:
            torch.testing.assert_close(tensors[f"{norm}/{name}"], whole[name])


def test_a_batchnorm_that_does_more_is_refused_and_nothing_changed():
    """Taken for nn.BatchNorm2d, timm's would lose its activation without a word."""
    network = nn.Sequential(nn.BatchNorm1d(3), BatchNormAct2d(3))

    with pytest.raises(ConfigError, match=r"^compute\.devices: 1 is a BatchNormAct2d, which would"):
        distributed.synchronise(network)

    assert type(network[0]) is nn.BatchNorm1d


def test_processes_hear_of_each_other(found):
    for tensors in found:
        assert tensors["gathered"].flatten().tolist() == [0, 1, 10, 11]
        assert tensors["a"] == 1
        assert tensors["b"].dtype == torch.bfloat16 and tensors["b"].tolist() == [1, 1]


def test_two_processes_resume_bit_for_bit(folder):
    """From a file that only the first one has."""
    wanted = (folder / "uninterrupted").read_bytes()

    assert wanted != (folder / "interrupted").read_bytes()
    assert [(folder / f"resumed-{rank}").read_bytes() == wanted for rank in range(2)] == [True] * 2


def test_a_process_alone_is_the_whole():
    x = torch.randn(3, 2, requires_grad=True)

    assert (distributed.world(), distributed.rank()) == (1, 0)
    assert distributed.gather(x) is x
    assert distributed.total(x) is x
    assert distributed.part(7, where="here") == 7
    assert not distributed.launched()
    with distributed.joined():
        assert distributed.world() == 1


def test_a_batch_is_shared_evenly(monkeypatch):
    monkeypatch.setattr(distributed, "world", lambda: 3)

    assert distributed.part(12, where="here") == 4
    with pytest.raises(ConfigError, match=r"here: a batch_size of 16 .* evenly by 3 devices"):
        distributed.part(16, where="here")
