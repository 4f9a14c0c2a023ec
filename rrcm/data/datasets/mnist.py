"""MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 x 28 grey pixels.

Source: LeCun, Bottou, Bengio & Haffner (1998), "Gradient-based learning applied to document
recognition".
"""

from pathlib import Path

from rrcm.data.ingest import idx
from rrcm.data.ingest.listing import Contents, Listing, Origin

CLASSES = tuple("0123456789")
CONTENTS = Contents(train=60_000, test=10_000, classes=10)
TORCHVISION = "MNIST"  # the class of torchvision.datasets that downloads it
MD5 = {  # of the unpacked files
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def acquire(root: Path, origin: Origin) -> str:
    """Copy the four files, gzipped or not, to ``root``; download them if no folder is named.

    Raises:
        DataError: A file is missing, damaged or not the official one, or the download fails.
    """
    return idx.acquire(root, origin, TORCHVISION, MD5)


def listing(root: Path, link: Path) -> Listing:
    """Every image of the files in ``root``, uint8 [1, 28, 28], with the test split it comes with.

    Raises:
        DataError: A file is missing or damaged.
    """
    return idx.listing(root, CLASSES, command="rrcm data mnist")
