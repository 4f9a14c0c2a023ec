"""What several test files build: digits, votes, classifiers, certificates, and refusals."""

import atexit
import json
import resource
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from helpers import MODEL
from hypothesis import settings
from lookalikes import origin
from ruamel.yaml import YAML
from typer.testing import CliRunner

from rrcm.__main__ import main
from rrcm.certification.distributions import gaussian
from rrcm.certification.votes import records
from rrcm.certification.votes.records import Header, Row
from rrcm.cli import main as cli
from rrcm.config.certification import Export
from rrcm.config.foreign import Foreign
from rrcm.core import registry
from rrcm.core.errors import RrcmError
from rrcm.core.files import sha256
from rrcm.data.datasets import digits
from rrcm.data.ingest.listing import Listing
from rrcm.data.splits.shards import Split
from rrcm.inference.backend import Backend
from rrcm.inference.export import export
from rrcm.models.trained import ensembles
from rrcm.models.trained.base import classifier

PARAMS = Path(__file__).parents[1] / "mini.yaml"
SIGMA = 0.5

many = settings(deadline=None)  # the machine may be busy


@contextmanager
def refused(error: type[RrcmError], *words: str) -> Iterator[pytest.ExceptionInfo[RrcmError]]:
    """The block raises ``error``, in one line that has all of ``words``; yields what it raises."""
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    assert "\n" not in message, f"more than a line: {message!r}"
    for word in words:
        assert word in message, f"no {word!r} in {message!r}"


def refusal(folder: Path, *command: str) -> str:
    """The error with which the command line ends in ``folder``; in this process, which is quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [*command])
        with pytest.raises(SystemExit) as ended:
            main()
    return str(ended.value.code)


def printed(folder: Path, *words: str, code: int = 0) -> str:
    """What `rrcm` prints in ``folder``; in this process, which is quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == code, result.exception
    return result.output


def understood(words: list[str]) -> None:
    """Fail on a command of `rrcm` that does not exist, and on a wrong option or value of one."""
    node, name, context = typer.main.get_command(cli.app), "rrcm", None
    while True:
        with node.make_context(name, [*words], parent=context) as context:
            context.obj = Path.cwd()  # where relative paths are from
        if not hasattr(node, "commands"):
            return
        name, node, words = node.resolve_command(context, [*context._protected_args, *context.args])


@contextmanager
def limited(most: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@cache
def _text(path: Path) -> str:
    return json.dumps(YAML(typ="safe", pure=True).load(path))


def plain(path: Path) -> Any:
    """A YAML file as data in which no two places share a node."""
    return json.loads(_text(path))


def changed(node: Any, dotted: str, value: Any) -> Any:
    """``node`` with another value at ``dotted``; ``node`` itself stays as it is."""
    key, _, rest = dotted.partition(".")
    return node | {key: changed(node[key], rest, value) if rest else value}


@cache
def listing() -> Listing:
    """All digits."""
    with TemporaryDirectory() as root:
        digits.acquire(Path(root), origin())
        return digits.listing(Path(root), Path(root) / "link")


def split(images: int) -> Split:
    """The first digits, as a split."""
    whole = listing()
    return Split(
        idx=whole.idx[:images],
        images=whole.images[:images],
        labels=whole.labels[:images],
        classes=digits.CLASSES,
        max_value=digits.MAX_VALUE,
    )


def header(**changes: Any) -> Header:
    """The header of a votes file of three classes."""
    values = {
        "format": records.FORMAT,
        "noise": "gaussian",
        "stream": gaussian.NAME,
        "slack": 0.0,
        "run": "a-run",
        "weights": "0" * 64,
        "sigma": SIGMA,
        "n0": 10,
        "n": 40,
        "seed": 0,
        "stop": "none",
        "stopping": {},
        "certificate": "cohen",
        "alpha": 0.001,
        "budget": 0.0,
        "backend": "onnx",
        "provider": "CPUExecutionProvider",
        "precision": "fp32",
        "batch_size": 16,
        "split": "",
        "subset": "all",
        "images": 0,
        "pixels": "1" * 64,
        "shard": "1/1",
        "classes": ["0", "1", "2"],
    }
    return Header(**values | changes)


def row(idx: int, label: int, n0: list[int], *looks: list[int], **changes: Any) -> Row:
    """The row of an image from votes [K] of the selection and, cumulative, of each look."""
    values = {
        "idx": idx,
        "label": label,
        "n0": records.sparse(np.array(n0)),
        "looks": [(int(sum(look)), records.sparse(np.array(look))) for look in looks],
        "stop": "n",
    }
    return Row(**values | changes)


class Clock:
    """Stands for `time`: seconds that pass with every look at them, however busy the machine is."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    perf_counter = monotonic


class Linear(Backend):
    """Scores x.w + b in float64, one addition after the other: a row never knows its batch.

    ``batches`` are the shapes that were asked for.
    """

    provider, weights, device = "float64", "0" * 64, torch.device("cpu")

    def __init__(self, w: Any, b: Any, *, sigma: float = SIGMA) -> None:
        self.sigma = sigma
        self.w, self.b = torch.tensor(w).double(), torch.tensor(b).double()  # [D, K], [K]
        self.classes = [str(k) for k in range(len(b))]
        self.batches: list[tuple[int, ...]] = []

    def scores(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        self.batches.append(tuple(x.shape))
        scores = self.b.expand(len(x), -1)
        for pixel, w in zip(x.double().flatten(1).T, self.w, strict=True):
            scores = scores + pixel[:, None] * w
        return scores


def linear(b: Any = (0.0, 0.1, 0.2), *, sigma: float = SIGMA, kind: Any = Linear) -> Any:
    """A classifier of 2 x 2 pixels, undecided enough that noise moves its votes."""
    return kind([[3.0, 0, -1], [-2, 1, 2], [0, 2, -3], [1, -3, 2]], b, sigma=sigma)


def images(
    count: int, shape: tuple[int, int, int] = (1, 2, 2), *, classes: int = 3, max_value: int = 16
) -> Split:
    """Random images with names in no order."""
    rng = np.random.default_rng(0)
    return Split(
        idx=rng.permutation(10 * count)[:count],
        images=rng.integers(0, max_value + 1, (count, *shape), dtype=np.uint8),
        labels=rng.integers(0, classes, count),
        classes=tuple(str(k) for k in range(classes)),
        max_value=max_value,
    )


def some(split: Split, places: Any) -> Split:
    """Images of a split, chosen or in another order."""
    places = np.asarray(places, dtype=int)
    return replace(
        split, idx=split.idx[places], images=split.images[places], labels=split.labels[places]
    )


def save_classifier(root: Path, run: str) -> None:
    """Save a network of random weights, whose votes go to several classes, as ``models/<run>``."""
    torch.manual_seed(0)
    network = classifier.build(MODEL, classes=10, condition="exact", final_norm=True)
    torch.nn.init.normal_(network.head.weight)
    config = {"classes": list(digits.CLASSES), "sigma": SIGMA}
    config |= {"condition": "exact", "final_norm": True}
    classifier.save(root / "models" / run, network.state_dict(), model=MODEL, config=config)


def export_classifier(root: Path, run: str, to: Path, **how: Any) -> dict[str, Any]:
    """Export ``models/<run>`` to ``to`` as the stage does; returns the parity record."""
    network, config = classifier.load(root / "models" / run)
    weights = sha256(root / "models" / run / "model.safetensors")
    folded = ensembles.folded(network, config)
    return export_to(to, network, folded, split(16), weights=weights, **how)


def export_to(
    to: Path, network: Any, folded: Any, found: Split, *, tolerance: float = 1e-4, **about: Any
) -> dict[str, Any]:
    """Export the run that ``to`` is named after; returns the parity record."""
    about = {"run": to.stem, "weights": 64 * "0", "classes": found.classes, "sigma": SIGMA} | about
    cfg = Export(opset=20, parity_images=16, tolerance=tolerance)
    return export(network, folded, to, found, about, cfg)


def lasting() -> Path:
    """A new folder, which is there until the end of all tests."""
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def exported() -> Path:
    """A folder with a classifier, saved and exported as the run ``a-run``; made once."""
    save_classifier(root := lasting(), "a-run")
    export_classifier(root, "a-run", root / "onnx" / "a-run.onnx")
    return root


def opened(root: Path, run: str, precision: str = "fp32", *, kind: str = "onnx", **how: Any) -> Any:
    """The classifier of a run for inference on the CPU, by a kind of backend."""
    usual = {"sigma": SIGMA, "device": "cpu", "calibration": None}
    return registry.load("backends", kind).Backend(root, run, precision=precision, **usual | how)


def foreign(kind: str, source: Any, **options: Any) -> Any:
    """The backend of a classifier trained elsewhere, at SIGMA by default."""
    given = Foreign(kind=kind, source=source, **{"sigma": SIGMA} | options)
    return registry.load("foreign", kind).Backend(given)


def certificates(predict: list[int], radius: list[float]) -> pd.DataFrame:
    """A table of certificates of images that all are of class 0."""
    images = len(predict)
    return pd.DataFrame(
        {
            "idx": range(images),
            "label": 0,
            "predict": predict,
            "radius": radius,
            "correct": [int(p == 0) for p in predict],
            "n_A": 90,
            "n": 100,
            "p_A": 0.75,
            "stop": "n",
        }
    )


def random_votes(seed: int, *, images: int = 1, **changes: Any) -> tuple[Header, list[Row]]:
    """Votes of images, right two times of three, that the rule of ``changes`` has stopped."""
    rng = np.random.default_rng(seed)
    head = header(images=images, **changes)
    rule, rows = head.rule(), []
    for idx in range(images):
        p, label, chosen = rng.beta(4, 1), idx % 3, (idx + (rng.random() < 1 / 3)) % 3
        selection = (head.n0 * np.eye(3, dtype=int)[chosen]).tolist()
        looks, hits, before = [], 0, 0
        for look in rule.looks:
            hits, before = hits + int(rng.binomial(look - before, p)), look
            looks.append(
                np.bincount([chosen, (chosen + 1) % 3], [hits, look - hits], 3).astype(int)
            )
            evidence = row(idx, label, selection, *looks, stop="").votes(3)
            if reason := rule.stop(evidence) or (records.END if look == head.n else ""):
                break
        rows.append(row(idx, label, selection, *looks, stop=reason))
    return head, rows


def export_elsewhere(network: torch.nn.Module, x: torch.Tensor, path: Path, *, fixed: bool) -> None:
    """Export a network as others do: torch's old exporter, names and batch unlike ours."""
    axes = {} if fixed else {"image": {0: "batch"}, "logits": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a newer one
        torch.onnx.export(
            network.eval(),
            (x,),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes=axes,
        )
