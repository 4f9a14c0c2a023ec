"""Stage ``member``: a trained run -> its folder in an ensemble, where `combine` finds it."""

import shutil
from pathlib import Path

from pipeline.runtime import graph
from rrcm.config import certification, sections
from rrcm.core.files import atomic, read_config, write_json


def main(name: str) -> None:
    with graph.running(f"member@{name}"):
        member = sections.read(f"members.{name}", certification.Member)
        source = Path("models", member.run)
        out = Path("ensembles", member.ensemble, str(member.place))
        with atomic(out / "model.safetensors") as part:
            shutil.copyfile(source / "model.safetensors", part)
        trained = read_config(source)
        params = trained.get("params", {}) | sections.as_written(f"members.{name}")
        write_json(out / "config.json", {"run": member.run, **trained, "params": params})


if __name__ == "__main__":
    graph.main(main)
