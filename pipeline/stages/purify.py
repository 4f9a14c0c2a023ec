"""Stage ``purify``: a denoiser in front of a classifier -> one classifier, and its ONNX file."""

from pathlib import Path

from pipeline.runtime import code, graph
from rrcm.config import certification, sections
from rrcm.core.files import sha256
from rrcm.data.splits import shards
from rrcm.inference.export import export
from rrcm.models.trained import purified


def main(name: str) -> None:
    with graph.running(f"purify@{name}") as stage:
        cfg = sections.read(f"purified.{name}", certification.Purified)
        parity = sections.read("export", certification.Export)
        folder, split = Path("models", name), shards.read(Path("shards"), "validation")
        made = purified.save(
            folder,
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
        folded, _ = purified.load(folder)
        stage.notes["parity"] = export(
            purified.rebuild(made, folder, trained=True),
            folded,
            Path(f"onnx/{name}.onnx"),
            split,
            {
                "run": name,
                "classes": made["classes"],
                "sigma": made["sigma"],
                "purified": made["purified"],
                "names": made["names"],
                "input": "noisy pixels, [0, 1] before the noise, and normal numbers z if it asks",
                "weights": sha256(folder / "model.safetensors"),
                "params": made["params"] | sections.as_written("export"),
            },
            parity,
        )


if __name__ == "__main__":
    graph.main(main)
