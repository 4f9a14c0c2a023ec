"""What people read of a run: how its stages ended."""

from pipeline.workflow import summary
from pipeline.workflow.stage_run import Outcome
from pipeline.workflow.summary import Result

ENTRY = {
    "cmd": "make",
    "deps": [{"path": "raw", "md5": "1"}],
    "outs": [
        {"path": "made", "hash": "md5", "md5": "2"},
        {"path": "provenance/made.json", "hash": "md5", "md5": "3"},
    ],
}


def test_one_line_says_what_failed_and_why():
    results = [
        Result(stage="a", outcome=Outcome.RAN, seconds=1.25, tries=2),
        Result(stage="b", outcome=Outcome.FAILED, tries=1, note="b: exit code 1\nlast words\nmore"),
        Result(stage="c", outcome=Outcome.SKIPPED, note="needs b"),
    ]
    lines = summary.text(results).splitlines()

    assert summary.sentence(results) == (
        "failed: b: exit code 1 last words (of 3 stages: 1 ran, 1 failed, 1 skipped)"
    )
    assert summary.sentence(results[:1]) == "1 stage: 1 ran"
    more = [Result(stage=name, outcome=Outcome.FAILED, note=f"{name}: no") for name in "wxyz"]
    assert summary.sentence(more) == "failed: w: no; x: no; and y, z (of 4 stages: 4 failed)"
    assert lines[1].split() == ["a", "ran", "1.2", "2"]
    assert lines[3].endswith("needs b")


def test_outputs_are_new_by_content_and_provenance_never_is():
    other = [{**ENTRY["outs"][0], "md5": "9"}, {**ENTRY["outs"][1], "md5": "9"}]

    assert summary.news(ENTRY, ENTRY | {"outs": other}) == ["made"]
    assert summary.news(ENTRY, ENTRY | {"outs": [ENTRY["outs"][0], other[1]]}) == []
    assert summary.same_inputs(ENTRY, ENTRY | {"outs": other})
    assert not summary.same_inputs(ENTRY, ENTRY | {"deps": [{"path": "raw", "md5": "0"}]})
