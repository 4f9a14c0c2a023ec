"""The digits dataset of scikit-learn: 1,797 real scans of 8 x 8 pixels, 17 grey levels.

Source: Alpaydin & Kaynak (1998), "Optical Recognition of Handwritten Digits", UCI repository. The
data ship with the installed scikit-learn, so nothing is downloaded.
"""

import gzip
import hashlib
import io
from importlib.resources import files
from pathlib import Path

import numpy as np

from rrcm.core.errors import DataError
from rrcm.core.files import read_bytes
from rrcm.data.ingest.listing import Contents, Listing, Origin, copy, of_arrays

CLASSES = tuple("0123456789")
CONTENTS = Contents(train=1797, test=0, classes=10)
MAX_VALUE = 16  # the largest pixel value
FILE = "digits.csv"
SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"


def acquire(root: Path, origin: Origin) -> str:
    """Write ``root/digits.csv`` from scikit-learn, 64 pixels and a label per row, always the same.

    Raises:
        DataError: Files were named, or scikit-learn's copy is another.
    """
    if origin.path is not None:
        raise DataError("--from: the digits are in scikit-learn; leave it out")
    packed = files("sklearn.datasets.data").joinpath("digits.csv.gz").read_bytes()
    raw = gzip.decompress(packed)
    if (got := hashlib.sha256(raw).hexdigest()) != SHA256:
        raise DataError(
            f"scikit-learn's copy of the digits has SHA-256 {got[:12]}…, expected {SHA256[:12]}…; "
            "install the version in requirements.lock"
        )
    copy({FILE: raw}, root)
    return f"{root / FILE}: 1,797 images"


def listing(root: Path, link: Path) -> Listing:
    """Every image of ``root/digits.csv``, uint8 [1, 8, 8], in the file's order."""
    raw = read_bytes(root / FILE, hint="; `rrcm data digits` writes it")
    if (got := hashlib.sha256(raw).hexdigest()) != SHA256:
        raise DataError(
            f"{root / FILE}: SHA-256 is {got[:12]}…, expected {SHA256[:12]}…; "
            "`rrcm data digits` restores it"
        )
    rows = np.loadtxt(io.BytesIO(raw), delimiter=",", dtype=np.uint8)  # [N, 65]
    images = rows[:, :64].reshape(-1, 1, 8, 8)
    labels = rows[:, 64].astype(np.int64)
    return of_arrays((images, labels), classes=CLASSES, max_value=MAX_VALUE)
