"""MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 x 28 grey pixels.

Source: LeCun, Bottou, Bengio & Haffner (1998), "Gradient-based learning applied to document
recognition".
"""

from functools import partial

from rrcm.data.ingest import idx
from rrcm.data.ingest.listing import Contents

CLASSES = tuple("0123456789")
CONTENTS = Contents(train=60_000, test=10_000, classes=10)
MD5 = {  # of the unpacked files
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}

acquire = partial(idx.acquire, torchvision="MNIST", md5=MD5)
listing = partial(idx.listing, classes=CLASSES, command="rrcm data mnist")
