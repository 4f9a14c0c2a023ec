"""A run that learns from another: the teacher is an input, as its weights would be."""

import json

import pytest
from workspace import Workspace

TEACHER, RUN = "tiny-gaussian-s050", "tiny-catrs-s050"


@pytest.mark.slow
def test_a_teacher_is_an_input_of_the_run_and_no_start_of_its_weights(checkout: Workspace):
    loss = {"lbd": 1.0, "m": 2, "steps": 1, "epsilon": 0.25, "draws": 20}
    changed = {"method": "catrs", "start": f"models/{TEACHER}", "loss": loss}
    checkout.edit(lambda p: p["runs"].update({RUN: {**p["runs"][TEACHER], **changed}}))

    assert checkout.repro(f"train@{RUN}") == {f"train@{RUN}"}
    made_with = json.loads((checkout.path / f"models/{RUN}/config.json").read_text())["params"]
    assert made_with.keys() == {"models.tiny", "recipes.scratch", f"runs.{TEACHER}", f"runs.{RUN}"}
    first = checkout.digest(f"models/{RUN}/model.safetensors")
    checkout.edit(lambda p: p["runs"][TEACHER].update(seed=1))
    assert checkout.repro(f"train@{RUN}") == {f"train@{TEACHER}", f"train@{RUN}"}
    assert checkout.digest(f"models/{RUN}/model.safetensors") != first
