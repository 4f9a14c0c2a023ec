"""Does BatchNorm tell that a checkpoint was rebuilt as another network?

``python -m benchmarks.rebuilt`` trains small ResNets on scikit-learn's digits under noise, writes
them as Cohen et al. do, and rebuilds them as `--checkpoint` does: with ReLU, a first convolution of
stride 1, no pooling, and shortcuts of zeros on both sides. It prints how many pictures the network
and the rebuilt one classify correctly under noise, and how far the input of the layer that is
furthest from training is: `batch_norm.MEAN` and `SPREAD` lie between.
"""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import rrcm
from rrcm.analysis.presentation import markup
from rrcm.inference import batch_norm
from rrcm.inference.foreign.checkpoint import NORMALISATIONS

SIGMA, LR, STEPS, BATCH, PICTURES, TRAINED = 0.25, 0.1, 150, 64, 40, 1400
WIDTHS = (8, 16, 32)
Activation = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """Two convolutions beside a shortcut: a convolution, or else zeros beside the channels."""

    def __init__(self, before: int, after: int, activation: Activation, zeros: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, after // before, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.activation, self.more = activation, after - before
        self.first = {"both sides": self.more // 2, "the end": 0}.get(zeros, 0)
        if self.more and not zeros:
            shortcut = nn.Conv2d(before, after, 1, 2, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Channels of the input's size, or half of it."""
        made = self.bn2(self.conv2(self.activation(self.bn1(self.conv1(x)))))
        if hasattr(self, "downsample"):
            x = self.downsample(x)
        elif self.more:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.first, self.more - self.first))
        return self.activation(made + x)


class Net(nn.Module):
    """A ResNet-8 with what no tensor shows."""

    def __init__(
        self,
        *,
        activation: Activation = F.relu,
        stride: int = 1,
        pool: bool = False,
        zeros: str = "",
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, stride, 1, bias=False)
        self.bn1, self.activation = nn.BatchNorm2d(WIDTHS[0]), activation
        self.pool = nn.MaxPool2d(3, 2, 1) if pool else nn.Identity()
        pairs = zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False)
        for stage, (before, after) in enumerate(pairs, start=1):
            self.add_module(f"layer{stage}", nn.Sequential(Block(before, after, activation, zeros)))
        self.fc = nn.Linear(WIDTHS[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of normalised pixels."""
        x = self.pool(self.activation(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3):
            x = stage(x)
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


NETWORKS: dict[str, Callable[[], Net]] = {
    "as it is rebuilt": Net,
    "as it is rebuilt, zeros": partial(Net, zeros="both sides"),
    "LeakyReLU of slope 0.1": partial(Net, activation=partial(F.leaky_relu, negative_slope=0.1)),
    "SiLU": partial(Net, activation=F.silu),
    "stride 2": partial(Net, stride=2),
    "a pooling": partial(Net, pool=True),
    "zeros at the end": partial(Net, zeros="the end"),
}


def normalised(x: Tensor) -> Tensor:
    """As for CIFAR-10, of which such files are."""
    mean, std = (torch.tensor(values)[:, None, None] for values in NORMALISATIONS["cifar10"])
    return (x - mean) / std


def trained(net: Net, x: Tensor, labels: Tensor) -> Net:
    """``net`` after `STEPS` batches of noisy pictures; in evaluation mode."""
    optimizer = torch.optim.SGD(net.train().parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (BATCH,))
        noisy = x[rows] + SIGMA * torch.randn(BATCH, *x.shape[1:])
        optimizer.zero_grad()
        F.cross_entropy(net(normalised(noisy)), labels[rows]).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def row(name: str, x: Tensor, labels: Tensor, folder: Path) -> dict[str, str]:
    """A line of the table."""
    torch.manual_seed(0)
    net, path = trained(NETWORKS[name](), x[:TRAINED], labels[:TRAINED]), folder / "net.pth"
    state = {f"1.{key}": tensor for key, tensor in net.state_dict().items()}
    torch.save({"arch": "cifar_resnet8", "state_dict": state}, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what was recognised
        backend = rrcm.smooth(str(path), sigma=SIGMA).backend
    noisy = x[TRAINED:] + SIGMA * torch.randn_like(x[TRAINED:])
    with torch.inference_mode():
        scores = {"network": net(normalised(noisy)), "rebuilt": backend.scores(noisy)}
        with batch_norm.observed(backend.network) as layers:
            backend.network(noisy[:PICTURES])
    right = {
        k: f"{100 * (v.argmax(1) == labels[TRAINED:]).float().mean():.0f}"
        for k, v in scores.items()
    }
    shift, spread = (max(each) for each in zip(*(layer.apart() for layer in layers), strict=True))
    told = "yes" if backend.unlike(noisy[:PICTURES]) else "no"
    return {"network": name, "right, %": right["network"], "rebuilt": right["rebuilt"]} | {
        "mean": f"{shift:.2f}", "variance": f"{spread:.2f}", "warned of": told
    }  # fmt: skip


def main() -> None:
    found = load_digits()
    small = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    x = F.interpolate(small, size=(32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    labels = torch.tensor(found.target)
    with TemporaryDirectory() as folder:
        rows = [row(name, x, labels, Path(folder)) for name in NETWORKS]
    print(markup.markdown(pd.DataFrame(rows)))


if __name__ == "__main__":
    main()
