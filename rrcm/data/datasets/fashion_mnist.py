"""Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28 x 28 grey pixels.

Source: Xiao, Rasul & Vollgraf (2017), arXiv:1708.07747.
"""

from functools import partial

from rrcm.data.ingest import idx
from rrcm.data.ingest.listing import Contents

CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
CONTENTS = Contents(train=60_000, test=10_000, classes=10)
MD5 = {  # of the unpacked files
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}

acquire = partial(idx.acquire, torchvision="FashionMNIST", md5=MD5)
listing = partial(idx.listing, classes=CLASSES, command="rrcm data fashion-mnist")
