"""A loss of ``rrcm.losses`` in a LightningModule trains what it trains in a plain loop."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from workspace import ROOT

import rrcm
import rrcm.core.torchvision_stub  # lightning imports torchvision

SIGMA, LBD, RATE = 0.25, 10.0, 0.1
STEPS = 6


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def batches() -> DataLoader:
    made = torch.Generator().manual_seed(1)
    x = torch.rand(STEPS * 4, 1, 4, 4, generator=made)
    return DataLoader(TensorDataset(x, torch.arange(STEPS * 4) % 3), batch_size=4)


def plain(net: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    torch.manual_seed(2)
    losses = []
    for x, y in batches():
        loss = rrcm.losses.consistency(net, x, y, sigma=SIGMA, lbd=LBD).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        return pytest.importorskip("lightning")


def documented(lightning) -> type:
    """The class that docs/python.md shows, from its own text."""
    (source,) = re.findall(
        r"```python\n(import lightning.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL
    )
    names: dict[str, type] = {}
    exec(source, names)
    return names["Smoothed"]


@pytest.mark.filterwarnings("ignore")  # of lightning, about its options
def test_a_lightning_module_has_the_losses_and_weights_of_a_plain_loop(lightning, tmp_path):
    ours, theirs = network(), network()
    seen: list[float] = []

    class Watch(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            seen.append(float(outputs["loss"]))

    expected = plain(ours)
    module = documented(lightning)(theirs, sigma=SIGMA, lbd=LBD)
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=[Watch()],
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=1,
    )
    torch.manual_seed(2)
    trainer.fit(module, batches())

    assert len(seen) == STEPS and seen == expected
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert not torch.equal(next(network().parameters()), next(theirs.parameters()))  # it trained
