"""Stage ``export``: a trained classifier -> one ONNX file and its parity record."""

from pathlib import Path

from pipeline.runtime import exporting, graph
from rrcm.config import certification, sections
from rrcm.data.splits import shards
from rrcm.models.trained import ensembles


def main(name: str) -> None:
    with graph.running(f"export@{name}") as stage:
        cfg = sections.read("export", certification.Export)
        split = shards.read(Path("shards"), "validation")
        stage.notes["parity"] = exporting.written(name, ensembles.load, split, cfg)


if __name__ == "__main__":
    graph.main(main)
