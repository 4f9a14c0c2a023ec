"""The ONNX file of a trained classifier of any kind, which three stages write."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from rrcm.config import sections
from rrcm.config.certification import Export
from rrcm.core.files import sha256
from rrcm.data.splits.shards import Split
from rrcm.inference.export import export

SAID = ("classes", "sigma", "condition", "ensemble", "purified", "names")  # of its config.json
PIXELS = "noisy pixels, [0, 1] before the noise"


def written(
    name: str, load: Callable[..., tuple[nn.Module, dict[str, Any]]], split: Split, cfg: Export
) -> dict[str, Any]:
    """Export ``models/<name>``, which ``load`` reads, to ``onnx/``; returns the parity record."""
    folder = Path("models", name)
    network, config = load(folder, trained=True)
    about = {"run": name} | {key: config[key] for key in SAID if key in config}
    if "members" in config:
        about["members"] = [member["run"] for member in config["members"]]
    about["input"] = PIXELS + ", and normal numbers z if it asks" * ("purified" in config)
    about["weights"] = sha256(folder / "model.safetensors")
    about["params"] = config["params"] | sections.as_written("export")
    return export(network, load(folder)[0], Path(f"onnx/{name}.onnx"), split, about, cfg)
