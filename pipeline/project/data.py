"""Puts raw data where the graph reads them, verified and tracked by DVC, for ``rrcm data``."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.runtime import graph
from rrcm.core import progress, registry
from rrcm.core.errors import DataError, one_line
from rrcm.core.files import write_text
from rrcm.data.datasets import cifar10 as cifar10_batches
from rrcm.data.datasets import digits as scanned
from rrcm.data.datasets import imagenet
from rrcm.data.ingest import class_folders, idx, manifest

DATA = Path("data")


def digits() -> str:
    """Write scikit-learn's digits to data/."""
    return _kept(f"{scanned.fetch(DATA / 'digits')}: 1,797 images")


def cifar10(source: Path | None, *, verify: bool) -> str:
    """Copy the batches of an archive or a folder to data/; download the archive without one."""
    with tempfile.TemporaryDirectory() as folder:
        found = source or _archive(Path(folder))
        images = cifar10_batches.fetch(DATA / "cifar10", found, verify=verify)
    return _kept(f"{DATA / 'cifar10'}: {images:,} images")


def idx_files(name: str, source: Path | None, *, verify: bool) -> str:
    """Copy the IDX files of a dataset to data/; download them where there is no ``source``."""
    dataset = registry.load("datasets", name)
    with tempfile.TemporaryDirectory() as folder:
        found = source or _four_files(dataset.TORCHVISION, Path(folder))
        images = idx.fetch(DATA / name, found, dataset.MD5, verify=verify)
    return _kept(f"{DATA / name}: {images:,} images")


def _archive(folder: Path) -> Path:
    """Fetch the archive of CIFAR-10; it is not unpickled by torchvision, but read as any other."""
    import rrcm.core.torchvision_stub  # noqa: F401 (beside a CPU build of torch)

    from torchvision.datasets import CIFAR10, utils  # isort: skip

    name = cifar10_batches.ARCHIVE
    with _download("CIFAR10", f"{CIFAR10.url} yourself and give it: --from {name}"):
        utils.download_url(CIFAR10.url, folder, name, CIFAR10.tgz_md5)
    return folder / name


def _four_files(name: str, folder: Path) -> Path:
    """Fetch the IDX files of a dataset; the mirrors are torchvision's business."""
    import rrcm.core.torchvision_stub  # noqa: F401 (beside a CPU build of torch)

    from torchvision import datasets  # isort: skip

    with _download(name, "its four files yourself and give their folder: --from DIR"):
        getattr(datasets, name)(str(folder), download=True)
    return folder / name / "raw"


@contextmanager
def _download(name: str, instead: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{name}: torchvision cannot download it ({one_line(error)}); fetch {instead}"
        ) from None


def pictures(name: str, source: Path, *, verify: bool, skip_unreadable: bool) -> str:
    """Read a dataset of picture files once, where it is, and write its manifest to data/.

    Args:
        name: The dataset, a file of rrcm/data/datasets/.
        source: The folder of its files.
        verify: Whether they must be the official ones.
        skip_unreadable: Whether pictures that cannot be read are left out, or an error.
    """
    if not source.is_dir():
        raise DataError(f"--from {source}: no such folder")
    if verify:
        size = sum(path.stat().st_size for path in imagenet.archives(source))
        with progress.bar(size, 0, "MD5", "B") as shown:
            for done in imagenet.verify(source):
                shown.update(done - shown.n)
    tree = registry.load("datasets", name).tree(source)
    if verify:
        imagenet.complete(source, tree)
    known = name != "folder"  # of which files ImageNet consists
    passed_over = [] if known else class_folders.passed_over(class_folders.contents(source))
    images = sum(len(places) for classes in tree.values() for places in classes.values())
    path = DATA / name / manifest.FILE
    with progress.bar(images, 0, name, " images") as shown:
        for done in manifest.examine(
            tree, path, skip_unreadable=skip_unreadable, workers=os.cpu_count() or 1
        ):
            shown.update(done - shown.n)
    write_text(graph.DATA / name, f"{source.resolve()}\n")
    skipped = len(manifest.read(path, command="").skipped)
    left_out = f" ({skipped:,} unreadable ones left out, listed there)" if skipped else ""
    return _kept("\n".join([*passed_over, f"{path}: {images - skipped:,} images{left_out}"]))


def _kept(said: str) -> str:
    changed = graph.track(DATA)
    return f"{said}, {'new to data.dvc: commit it' if changed else 'as data.dvc has them'}"
