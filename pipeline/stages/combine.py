"""Stage ``combine``: members of an ensemble -> one classifier, like that of a run, as ONNX."""

from pathlib import Path

from pipeline.runtime import code, graph
from rrcm.config import certification, sections
from rrcm.core.files import sha256
from rrcm.data.splits import shards
from rrcm.inference.export import export
from rrcm.models.trained import ensembles


def main(name: str) -> None:
    with graph.running(f"combine@{name}") as stage:
        cfg = sections.read(f"ensembles.{name}", certification.Ensemble)
        parity = sections.read("export", certification.Export)
        members = ensembles.read(Path("ensembles", name), cfg.members)
        folder = Path("models", name)
        used = sorted({about["model"]["architecture"] for _, about in members})
        # An evaluation depends on the code of one architecture; these digests add all others.
        kinds = ("networks", "folding")
        files = [f"{code.COMPONENTS}/{kind}/{one}.json" for one in used for kind in kinds]
        params = sections.as_written(f"ensembles.{name}")
        for _, about in members:
            params |= about.pop("params")  # a record only, not part of the function
        made = ensembles.save(
            folder, members, cfg, code={f: sha256(Path(f)) for f in files}, params=params
        )
        folded, _ = ensembles.load(folder)
        stage.notes["parity"] = export(
            ensembles.EnsembleClassifier([network for network, _ in members], cfg),
            folded,
            Path(f"onnx/{name}.onnx"),
            shards.read(Path("shards"), "validation"),
            {
                "run": name,
                "classes": made["classes"],
                "sigma": made["sigma"],
                "ensemble": made["ensemble"],
                "members": [about["run"] for _, about in members],
                "input": "noisy pixels, [0, 1] before the noise",
                "weights": sha256(folder / "model.safetensors"),
                "params": made["params"] | sections.as_written("export"),
            },
            parity,
        )


if __name__ == "__main__":
    graph.main(main)
