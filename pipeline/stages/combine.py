"""Stage ``combine``: members of an ensemble -> one classifier, like that of a run, as ONNX."""

from pathlib import Path

from pipeline.runtime import code, exporting, graph
from rrcm.config import certification, sections
from rrcm.core.files import sha256
from rrcm.data.splits import shards
from rrcm.models.trained import ensembles


def main(name: str) -> None:
    with graph.running(f"combine@{name}") as stage:
        cfg = sections.read(f"ensembles.{name}", certification.Ensemble)
        parity = sections.read("export", certification.Export)
        members = ensembles.read(Path("ensembles", name), cfg.members)
        used = sorted({about["model"]["architecture"] for _, about in members})
        # An evaluation depends on the code of one architecture; these digests add all others.
        kinds = ("networks", "folding")
        files = [f"{code.COMPONENTS}/{kind}/{one}.json" for one in used for kind in kinds]
        params = sections.as_written(f"ensembles.{name}")
        for _, about in members:
            params |= about.pop("params")  # a record only, not part of the function
        digests = {file: sha256(Path(file)) for file in files}
        ensembles.save(Path("models", name), members, cfg, code=digests, params=params)
        split = shards.read(Path("shards"), "validation")
        stage.notes["parity"] = exporting.written(name, ensembles.load, split, parity)


if __name__ == "__main__":
    graph.main(main)
