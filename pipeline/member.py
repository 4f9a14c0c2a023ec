"""Stage ``member``: a trained run -> a place of an ensemble, where `combine` finds it."""

import json
import shutil
from pathlib import Path

from pipeline import graph
from rrcm import config, settings
from rrcm.files import atomic, write_json


def main(name: str) -> None:
    with graph.running(f"member@{name}"):
        member = config.read(f"members.{name}", settings.Member)
        source = Path("models", member.run)
        out = Path("ensembles", member.ensemble, str(member.place))
        with atomic(out / "model.safetensors") as part:
            shutil.copyfile(source / "model.safetensors", part)
        trained = json.loads((source / "config.json").read_text())
        params = trained.get("params", {}) | config.as_written(f"members.{name}")
        write_json(out / "config.json", {"run": member.run, **trained, "params": params})


if __name__ == "__main__":
    graph.main(main)
