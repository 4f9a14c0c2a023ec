"""`make gpu-cifar10`, as far as a machine without a GPU can tell."""

from pathlib import Path

import pytest
from workspace import ROOT

from benchmarks import gpu_cifar10
from benchmarks.gpu_cifar10 import MADE_BY, PARTS, Part, Workshop
from pipeline.runtime import without_dvc
from rrcm.core.files import write_text


@pytest.mark.parametrize("name", PARTS)
def test_each_stage_comes_after_all_that_it_is_made_of(name, tmp_path, monkeypatch):
    shop = Workshop(name, PARTS[name], tmp_path, print)
    shop.prepare(1.0)
    monkeypatch.chdir(shop.folder)
    stages, before, seen = shop.stages(), set[str](), set[tuple[str, int]]()

    for stage, needed in stages.items():
        assert {*needed} <= before
        before.add(stage)
        if (alike := (stage.partition("@")[0], len(needed))) not in seen:
            seen.add(alike)
            read = [Path(path).parts for path in without_dvc.inputs(stage)["files"]]
            made = {f"{MADE_BY[parts[0]]}@{parts[1]}" for parts in read if parts[0] in MADE_BY}
            assert made == {*needed}
    assert seen


def test_each_result_is_in_one_archive_within_its_size_also_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_cifar10, "PACK", 100_000)
    told = list[str]()
    shop = Workshop("part", Part("digits", (), ("train",)), tmp_path, told.append)
    shop.folder.mkdir()
    write_text(shop.folder / "params.yaml", (ROOT / "presets/digits.yaml").read_text())
    stages = [f"train@{number}" for number in range(5)]
    for name in stages:
        out = Path("models", name, "model.safetensors")
        write_text(shop.folder / out, name * 4_000)
        write_text(
            shop.record(name), f"schema: '2.0'\nstages: {{{name}: {{outs: [{{path: {out}}}]}}}}\n"
        )
    for name in [*stages, *stages]:  # again, as after a kill
        shop.pack(name)

    packs = [*tmp_path.glob("part-*.tar")]
    found = [path for pack in packs for path in gpu_cifar10.names(pack)]
    assert sorted(path for path in found if path.endswith("safetensors")) == [
        f"models/{name}/model.safetensors" for name in stages
    ]
    assert len(packs) == 3 and len(told) == 5  # each holds two of 28 kB, with their records
