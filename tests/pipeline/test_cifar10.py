"""`rrcm preset cifar10` on look-alike batches: the whole graph, down to a 3 x 3 table."""

from pathlib import Path

import lookalikes
import pandas as pd
import pytest
import workspace

RECIPES = [f"recipes.finetune-{s}" for s in ("s025", "s050", "s100")]
CUT = {  # the preset's graph, with fewer steps, draws and images, on a narrow network
    "models.b.size": "32x2x2",
    "models.b.projector_width": "32",
    "pretrain.b.steps": "4",
    "pretrain.b.batch_size": "32",
    **{f"{recipe}.epochs": "1" for recipe in RECIPES},
    **{f"{recipe}.batch_size": "64" for recipe in RECIPES},
    **{f"{part}.compute.compile": "false" for part in ["pretrain.b", *RECIPES]},
    **{f"{part}.compute.precision": "fp32" for part in ["pretrain.b", *RECIPES]},
    "data.validation": "40",
    "sample.n": "200",
    "sample.batch_size": "50",
    "sample.subset": "every:4",
}


@pytest.mark.slow
def test_the_whole_graph_ends_in_a_table_of_three_by_three(tmp_path: Path):
    archive = lookalikes.cifar10(tmp_path / "official files", images=60, test=40)
    checkout = workspace.create(tmp_path / "a checkout")
    checkout.run("rrcm", "preset", "cifar10", "--force")
    checkout.run("rrcm", "data", "cifar10", "--from", str(archive), "--no-verify")
    checkout.commit("CIFAR-10")

    changes = [word for key, value in CUT.items() for word in ("-S", f"{key}={value}")]
    checkout.run("dvc", "exp", "run", *changes)

    table = pd.read_csv(checkout.path / "report/table.csv")
    names = {f"b-rrcm-s{a}-e{b}" for a in ("025", "050", "100") for b in ("025", "050", "100")}
    assert {path.stem for path in checkout.path.glob("certificates/*.csv")} == names
    assert set(table["entry"]) == names and set(table["sigma"]) == {0.25, 0.5, 1.0}
    assert all(len(pd.read_csv(path)) == 10 for path in checkout.path.glob("certificates/*.csv"))
    assert "up to date" in checkout.run("dvc", "status")
