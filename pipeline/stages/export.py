"""Stage ``export``: a trained classifier -> one ONNX file and its parity record."""

from pathlib import Path

from pipeline.runtime import graph
from rrcm.config import certification, sections
from rrcm.core.files import sha256
from rrcm.data.splits import shards
from rrcm.inference.export import export
from rrcm.models.trained import ensembles
from rrcm.models.trained.base import classifier


def main(name: str) -> None:
    with graph.running(f"export@{name}") as stage:
        cfg = sections.read("export", certification.Export)
        folder = Path("models", name)
        network, trained = classifier.load(folder)
        stage.notes["parity"] = export(
            network,
            ensembles.folded(network, trained),
            Path(f"onnx/{name}.onnx"),
            shards.read(Path("shards"), "validation"),
            {
                "run": name,
                "classes": trained["classes"],
                "sigma": trained["sigma"],
                "condition": trained["condition"],
                "input": "noisy pixels, [0, 1] before the noise",
                "weights": sha256(folder / "model.safetensors"),
                "params": trained["params"] | sections.as_written("export"),
            },
            cfg,
        )


if __name__ == "__main__":
    graph.main(main)
