"""Names of params.yaml are plain words, so that none reaches a shell or a path elsewhere."""

import json

from builders import PARAMS, plain, refused
from hypothesis import given
from hypothesis import strategies as st
from workspace import Workspace

from rrcm.config import params
from rrcm.core.errors import ConfigError
from rrcm.core.schema import Name, cast

SECTIONS = ("models", "pretrain", "recipes", "runs", "denoisers", "evals")
HOSTILE = (
    *("x;touch pwned;", "$(touch pwned)", "`touch pwned`", "a b", "a|b", "a&b", "x\ntouch pwned"),
    *("../x", "/abs", "a/b", "a.b", "a@b", "a:b", "-rf", "_x", "1x", "", "é", "a" * 101, "x\n"),
)


def test_what_is_no_plain_word_is_refused():
    for name in HOSTILE:
        with refused(ConfigError, "runs: a name is a letter and up to 99 letters, digits"):
            cast(name, Name, where="runs")


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,99}", fullmatch=True))
def test_plain_words_are_names(name: str):
    assert cast(name, Name, where="runs") == name


def test_no_section_of_a_preset_takes_another_name(tmp_path, monkeypatch):
    """The whole file is refused, whichever section it is."""
    monkeypatch.chdir(tmp_path)
    for section in SECTIONS:
        whole = plain(PARAMS)
        whole[section]["x;touch pwned;"] = {}
        (tmp_path / "params.yaml").write_text(json.dumps(whole))
        with refused(ConfigError, f"params.yaml: {section}.x;touch pwned;: a name is a letter"):
            params.load()


def test_plain_dvc_runs_nothing_that_a_name_says(checkout: Workspace):
    """DVC quotes nothing that it fills into a command; ours have nothing of params.yaml."""
    name = "x;touch pwned;"

    def rename(whole: dict) -> None:
        whole["runs"][name] = next(iter(whole["runs"].values()))

    checkout.edit(rename)
    output = checkout.run("dvc", "repro", "--single-item", f"train@{name}", fails=True)
    assert "a name is a letter" in output
    changed = checkout.run("dvc", "exp", "run", "-S", f"+runs={{'{name}': {{}}}}", fails=True)
    assert "Traceback" not in changed
    assert not list(checkout.path.rglob("pwned"))


def test_dvc_keeps_nothing_where_others_may_write(checkout: Workspace):
    """It unpickles what it finds there, and its own choice is a folder for all users."""
    clone = checkout.clone(checkout.path.parent / "clone")
    clone.run("dvc", "status", "data.dvc")
    said = clone.run("dvc", "doctor")
    assert "Repo.site_cache_dir: .dvc-site/repo/" in said
    ours = [path for path in clone.path.glob(".dvc*/**/*") if path.is_dir()]
    assert len(ours) > 4
    assert not [path for path in ours if path.stat().st_mode & 0o002]
    assert clone.run("git", "status", "--porcelain") == ""
