"""Stage ``purify``: a denoiser in front of a classifier -> one classifier, and its ONNX file."""

from pathlib import Path

from pipeline.runtime import code, exporting, graph
from rrcm.config import certification, sections
from rrcm.data.splits import shards
from rrcm.models.trained import purified


def main(name: str) -> None:
    with graph.running(f"purify@{name}") as stage:
        cfg = sections.read(f"purified.{name}", certification.Purified)
        parity = sections.read("export", certification.Export)
        split = shards.read(Path("shards"), "validation")
        purified.save(
            Path("models", name),
            cfg,
            root=Path("."),
            pictures=split.images.shape[1:],
            # An evaluation depends on the code of one network; these digests add the others.
            code=[
                f"{code.COMPONENTS}/purifiers/{cfg.purifier}.json",
                f"{code.COMPONENTS}/denoiser_networks/{cfg.network}.json",
            ],
            params=sections.as_written(f"purified.{name}"),
        )
        stage.notes["parity"] = exporting.written(name, purified.load, split, parity)


if __name__ == "__main__":
    graph.main(main)
