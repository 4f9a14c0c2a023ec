"""`rrcm preset mnist-all` on look-alikes: from IDX files to a row for each method."""

from pathlib import Path

import lookalikes
import pandas as pd
import pytest
import workspace

METHODS = ("gaussian", "stability", "consistency", "smoothadv", "smoothadv_consistency", "macer")
CUT = {  # fewer epochs, draws and images
    "recipes.scratch.epochs": "1",
    **{f"recipes.scratch-m{m}.epochs": "1" for m in (2, 4, 16)},
    "recipes.scratch.batch_size": "32",
    "sample.n": "100",
    "sample.subset": "every:4",
}


@pytest.mark.slow
def test_every_method_ends_in_a_row_of_the_table(tmp_path: Path):
    files = lookalikes.idx(tmp_path / "official files", images=330, test=40)
    checkout = workspace.create(tmp_path / "a checkout")
    checkout.run("rrcm", "preset", "mnist-all", "--force")
    checkout.run("rrcm", "data", "mnist", "--from", str(files), "--no-verify")
    checkout.commit("MNIST")
    names = {f"lenet-{method}-s025-e025" for method in METHODS}

    changes = [word for key, value in CUT.items() for word in ("-S", f"{key}={value}")]
    stages = [f"certify@{name}" for name in sorted(names)]
    checkout.run("dvc", "exp", "run", *changes, *stages)

    tables = {path.stem: pd.read_csv(path) for path in checkout.path.glob("certificates/*.csv")}
    assert tables.keys() == names
    assert all(len(table) == 10 for table in tables.values())
