"""What people read of a run: the tags of its stages, and how they ended."""

import pytest
from workspace import ROOT

from pipeline.workflow.flow import summary, tags
from pipeline.workflow.flow.summary import Ended, Result
from rrcm.config import params
from rrcm.config.params import Params

ENTRY = {
    "cmd": "make",
    "deps": [{"path": "raw", "md5": "1"}],
    "outs": [
        {"path": "made", "hash": "md5", "md5": "2"},
        {"path": "provenance/made.json", "hash": "md5", "md5": "3"},
    ],
}


@pytest.fixture(scope="module")
def whole() -> Params:
    return params.load(ROOT / "tests/mini.yaml")


def test_tags_tell_model_method_and_sigma_of_whatever_has_them(whole: Params):
    assert tags.of("train@tiny-rrcm-s050", whole) == ["model:tiny", "method:rrcm", "sigma:0.5"]
    assert tags.of("certify@tiny-rrcm-s050-e050", whole) == tags.of("train@tiny-rrcm-s050", whole)
    assert tags.of("pretrain@tiny", whole) == ["model:tiny"]
    assert tags.of("shard", whole) == tags.of("train@unheard-of", whole) == []


def test_one_line_says_what_failed_and_why():
    results = [
        Result(stage="a", ended=Ended.RAN, seconds=1.25, tries=2),
        Result(stage="b", ended=Ended.FAILED, tries=1, note="b: exit code 1\nlast words\nmore"),
        Result(stage="c", ended=Ended.SKIPPED, note="needs b"),
    ]
    lines = summary.text(results).splitlines()

    assert summary.sentence(results) == (
        "failed: b: exit code 1 last words (of 3 stages: 1 ran, 1 failed, 1 skipped)"
    )
    assert summary.sentence(results[:1]) == "1 stage: 1 ran"
    more = [Result(stage=name, ended=Ended.FAILED, note=f"{name}: no") for name in "wxyz"]
    assert summary.sentence(more) == "failed: w: no; x: no; and y, z (of 4 stages: 4 failed)"
    assert lines[1].split() == ["a", "ran", "1.2", "2"]
    assert lines[3].endswith("needs b")


def test_outputs_are_new_by_content_and_provenance_never_is():
    other = [{**ENTRY["outs"][0], "md5": "9"}, {**ENTRY["outs"][1], "md5": "9"}]

    assert summary.news(ENTRY, ENTRY | {"outs": other}) == ["made"]
    assert summary.news(ENTRY, ENTRY | {"outs": [ENTRY["outs"][0], other[1]]}) == []
    assert summary.same_inputs(ENTRY, ENTRY | {"outs": other})
    assert not summary.same_inputs(ENTRY, ENTRY | {"deps": [{"path": "raw", "md5": "0"}]})
