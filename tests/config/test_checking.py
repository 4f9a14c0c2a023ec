"""All of params.yaml is checked before the first stage starts, what components read included."""

import functools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from builders import PARAMS, plain, refusal, refused
from dvc.repo import Repo
from helpers import few, shipped
from hypothesis import given, settings
from hypothesis import strategies as st
from workspace import ROOT, RUN, committed, tracked

from pipeline import checked
from pipeline.workflow import status as check
from rrcm.config import params
from rrcm.core.errors import ConfigError, RrcmError
from rrcm.core.schema import LINE, listed, shown

PRESETS = tracked("presets/*.yaml")
Place = tuple[str | int, ...]


def whole(node: Any) -> None:
    """Everything that `rrcm check` asks of these parameters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(params, "read_yaml", lambda path: node)  # infinities are not JSON
        checked.check(params.load())


def put(node: Any, place: Place, value: Any) -> Any:
    """``node`` with another value at ``place``; ``node`` itself stays as it is."""
    if not place:
        return value
    first, *rest = place
    if isinstance(node, list):
        return [put(v, (*rest,), value) if i == first else v for i, v in enumerate(node)]
    return node | {first: put(node[first], (*rest,), value) if first in node else value}


def dotted(place: Place) -> str:
    found = ""
    for key in place:
        found += f"[{key}]" if isinstance(key, int) else f"{'.' * bool(found)}{key}"
    return found


def test_every_preset_is_right_in_all_its_parts():
    assert PRESETS
    for path in PRESETS:
        checked.check(shipped(path.stem))


# -- slips, each in a part that only one component reads ------------------------------------------

ALL = "digits-all"
DIFFUSION = "digits-diffusion"
SLIPS = [
    (ALL, "data.name", "digit", "rrcm/data/datasets/ has no 'digit'", "Did you mean 'digits'?"),
    (ALL, "models.tiny.patch_sise", 2, "models.tiny: unknown key", "Did you mean 'patch_size'?"),
    (ALL, "models.tiny.patch_size", 3, "patch_size: 3 does not divide image_size 8"),
    (ALL, "pretrain.tiny-rrcm.objective", "rcm", "training/objectives/", "Did you mean 'rrcm'?"),
    (ALL, "pretrain.tiny-rrcm.loss.align", ["far"], "loss.align[0]: expected float, got 'far'"),
    (ALL, "pretrain.tiny-rrcm.augment.third", [], "asks for the views first, second, plain"),
    (ALL, "recipes.scratch-36.augment", [{"gain": {"amount": -1}}], "augment[0].gain.amount"),
    (ALL, "runs.tiny-macer-s025.loss.gama", 8.0, "loss: unknown key", "Did you mean 'gamma'?"),
    (ALL, "runs.tiny-rrcm-s025.start", "none", "rrcm starts from a pre-trained encoder"),
    (ALL, "runs.tiny-catrs-s025.start", "none", "catrs learns from a classifier, models/<run>"),
    (
        ALL,
        "runs.tiny-gaussian-s025.start",
        "models/tiny-gaussian-s025",
        "is not in the starting points",
    ),
    (ALL, "recipes.scratch-8.mix.mixup", 0.5, "catrs cannot mix images"),
    (ALL, "stopping.grid.radii", [0.5, "a"], "stopping.grid.radii[1]: expected float, got 'a'"),
    (ALL, "certify.certificates", ["cohen", "to_class"], "[1]: ", "Did you mean 'two_class'?"),
    (ALL, "ensembles.tiny-boosting-s025.members", 2**40, "members: at most 1024"),
    (DIFFUSION, "denoisers.tiny-diffusion.loss.schedule.steps", 1, "edm has no steps"),
    (DIFFUSION, "purified.tiny-dds-s025.purify.rule", "last", "purify.rule: must be first or"),
    ("cifar10", "models.r110.size", "111", "size: no '111', only '50', or 6 n + 2"),
]


def test_a_slip_in_any_part_is_found_where_it_stands():
    for preset, key, value, *words in SLIPS:
        node, section = plain(ROOT / f"presets/{preset}.yaml"), ".".join(key.split(".")[:2])

        with refused(ConfigError, f"params.yaml: {section}", *words):
            whole(put(node, (*key.split("."),), value))


# -- every leaf, with values that nobody expects --------------------------------------------------

HOSTILE = [
    *(None, "", "os", "a\nb", "x" * 5000, True, [], {}, {"": 1}, [None], [[{}]]),
    *(-1, 0, 2**31, 2**63, 10**400, 0.5, math.nan, math.inf, -1e300, [math.nan]),
]


def leaves(node: Any, place: Place = ()) -> Iterator[Place]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in pairs:
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from leaves(value, (*place, key))


cases = st.deferred(  # a preset, and a leaf of it
    lambda: st.sampled_from(PRESETS).flatmap(
        lambda path: st.tuples(st.just(path), st.sampled_from([*leaves(plain(path))]))
    )
)


@settings(deadline=None, max_examples=50)
@given(cases, st.sampled_from(HOSTILE))
def test_any_value_anywhere_is_understood_or_refused_in_one_line(case, value):
    """No other exception, no wait: what a slip makes of a number is no size of anything here."""
    path, place = case
    where = dotted(place)
    section = where.rpartition("[" if where.endswith("]") else ".")[0]
    try:
        whole(put(plain(path), place, value))
    except RrcmError as error:
        said = str(error)
        assert "\n" not in said and len(said) <= LINE + 30, said
        assert where in said or section in said, f"{where} = {shown(value)}: {said}"


def mappings(path: Path) -> list[Place]:
    """Those of a preset that have keys; of a whole section the keys are names, which are free."""
    node = plain(path)
    values = {p: functools.reduce(lambda part, key: part[key], p, node) for p in leaves(node)}
    return [p for p, value in values.items() if isinstance(value, dict) and value and len(p) > 1]


@few
@given(
    st.sampled_from(PRESETS).flatmap(
        lambda path: st.tuples(st.just(path), st.sampled_from(mappings(path)))
    )
)
def test_no_key_of_a_component_goes_unread(case):
    """A key that is added anywhere below a name is refused, so all of it was looked at."""
    path, place = case
    with refused(ConfigError, dotted(place)):
        whole(put(plain(path), (*place, "extra"), 1))


def test_values_in_errors_are_short():
    assert shown([1.5, "a\nb", None]) == "[1.5, 'a\\nb', None]"
    for value in ("x" * 10**6, [[0] * 10**5] * 10**5, 16**10_000, {i: i for i in range(10**5)}):
        assert len(shown(value)) < 200 and "\n" not in shown(value)
    assert listed("abc") == "a, b, c"
    assert listed(["a" * 50] * 1000).count("a" * 50) == 2
    assert listed(["a" * 50] * 1000).endswith(", …")


# -- once for each version ------------------------------------------------------------------------

LOAD = "import sys; from pipeline import checked; checked.load(); print('torch' in sys.modules)"


def test_a_file_that_was_found_right_is_not_checked_again(tmp_path, monkeypatch):
    """Components take seconds to import, and a stage may take less."""
    monkeypatch.chdir(tmp_path)
    check, texts = checked.check, []
    monkeypatch.setattr(checked, "check", lambda whole: texts.append(text) or check(whole))
    right, wrong = json.dumps(plain(PARAMS)), plain(PARAMS)
    wrong["runs"][RUN]["loss"]["lambda"] = 1.0

    for text in (right, right, json.dumps(wrong), json.dumps(wrong), f"{right} ", f"{right} "):
        Path("params.yaml").write_text(text)
        with suppress(ConfigError):
            checked.load()

    assert texts == [right, json.dumps(wrong), json.dumps(wrong), f"{right} "]
    assert subprocess.check_output([sys.executable, "-c", LOAD], text=True) == "False\n"


def test_another_library_checks_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(json.dumps(plain(PARAMS)))
    before = checked._digest()
    library = tmp_path / "rrcm"
    (library / "methods").mkdir(parents=True)
    monkeypatch.setattr(checked.registry, "LIBRARY", library)
    seen = {before, checked._digest()}
    (library / "methods/new.py").write_text("a")
    seen.add(checked._digest())
    (library / "methods/new.py").write_text("b")
    seen.add(checked._digest())
    (library / "methods/new.py").rename(library / "methods/renamed.py")

    assert len({*seen, checked._digest()}) == 5


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The graph and the miniature parameters, with nothing made of them."""
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    Path("data.dvc").write_text(committed("data.dvc"))
    Path("params.yaml").write_text(PARAMS.read_text())
    Repo.init(str(tmp_path), no_scm=True).close()
    return tmp_path


def test_a_network_that_no_run_has_is_said_to_be_unchecked(fresh: Path):
    node = put(plain(PARAMS), ("models", "spare"), {"anything": 1})
    Path("params.yaml").write_text(json.dumps(node))

    assert "not checked: models.spare: no run has it" in check.check().splitlines()


def test_a_slip_is_one_line_and_exit_code_1(fresh: Path):
    node = put(plain(PARAMS), ("runs", RUN, "loss", "lbda"), 1.0)
    Path("params.yaml").write_text(json.dumps(node))

    assert refusal(fresh, "rrcm", "check") == (
        f"error: params.yaml: runs.{RUN}.loss: unknown key 'lbda'. Did you mean 'lbd'?"
    )
    assert not checked.VALID.exists()
