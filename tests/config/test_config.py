"""params.yaml is complete, typed and consistent, and nothing in it is ignored."""

import dataclasses
import json

import pytest
from builders import PARAMS, changed, plain, refused
from helpers import shipped
from workspace import ROOT, add

from rrcm.config import params, sections
from rrcm.config.params import Params
from rrcm.core.errors import ConfigError
from rrcm.core.schema import parse, read_yaml

NAMED = {"pretrain", "recipes", "runs", "evals"}  # their keys are names of the user's own
OPEN = {"models", "loss", "stopping", "augment"}  # a component knows what belongs in there


def keys(node, path=()):
    """Paths to all keys that config.py and settings.py declare."""
    for key, value in node.items():
        if path[-1:] not in {(name,) for name in NAMED}:
            yield (*path, key)
        if isinstance(value, dict) and key not in OPEN:
            yield from keys(value, (*path, key))


KEYS = [".".join(path) for path in keys(plain(PARAMS))]


def at(node, dotted):
    for key in dotted.split(".") if dotted else ():
        node = node[key]
    return node


def load(tmp_path, content):
    """Load a file of this content; JSON is YAML."""
    path = tmp_path / "params.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return params.load(path)


def test_a_preset_holds_what_its_file_says():
    loaded = dataclasses.asdict(params.load(PARAMS))
    for cfg in loaded["pretrain"].values():  # a key that came later, and is left out
        assert cfg["target"].pop("steps") == 0
    for run in loaded["runs"].values():
        assert run.pop("noise") == "gaussian"

    assert loaded == plain(PARAMS)


def refusal(node):
    """What is said of parameters that are refused; empty if they are taken."""
    try:
        parse(node, Params, where="here")
    except ConfigError as error:
        return str(error)
    return ""


def test_every_key_is_needed_and_has_a_value():
    taken = []
    for key in KEYS:
        section, _, name = key.rpartition(".")
        without, empty = plain(PARAMS), changed(plain(PARAMS), key, None)
        del at(without, section)[name]
        if f"here{'.' * bool(section)}{section}: missing {name}" not in refusal(without):
            taken.append(f"without {key}")
        if not (refusal(empty).startswith(f"here.{key}: ") and "got None" in refusal(empty)):
            taken.append(f"with an empty {key}")

    assert taken == []


def test_an_unknown_key_is_told_what_it_resembles():
    taken = []
    for section in sorted({key.rpartition(".")[0] for key in KEYS}):
        node = plain(PARAMS)
        known = next(iter(at(node, section)))
        at(node, section)[f"{known}s"] = 1
        said = f"{section}: unknown key '{known}s'. Did you mean '{known}'?"
        if said.removeprefix(": ") not in refusal(node):
            taken.append(section)

    assert taken == []


RUN = "runs.tiny-rrcm-s050"
EVAL = "evals.tiny-rrcm-s050-e050"
OPTIMIZER, GRID = "pretrain.tiny.optimizer", "pretrain.tiny.grid"
OUT_OF_RANGE = {  # what is said -> keys, each with a value of which it is said
    "must be positive": {
        **dict.fromkeys(("data.size", "data.shard_size", "pretrain.tiny.steps"), 0),
        **dict.fromkeys((f"{OPTIMIZER}.lr", f"{OPTIMIZER}.clip", f"{GRID}.rho", f"{GRID}.std"), 0),
        **dict.fromkeys(("recipes.scratch.validation_draws", "sample.batch_size", "sample.n0"), 0),
        **dict.fromkeys((f"{RUN}.sigma", f"{EVAL}.sigma", "pretrain.tiny.compute.accumulate"), 0),
        "data.validation": -1,
    },
    "must be finite and >= 0": dict.fromkeys(
        (
            *("data.test", "data.choice", f"{OPTIMIZER}.weight_decay", "recipes.scratch.epochs"),
            *("pretrain.tiny.compute.devices", "pretrain.tiny.compute.workers"),
            "recipes.scratch.mix.mixup",
        ),
        -1,
    ),
    "must be in (0, 1), got": {"certify.alpha": 0, "report.confidence": 95},
    "must be in (0, 1]": {f"{OPTIMIZER}.gamma": 0.0, "recipes.scratch.layer_decay": 0},
    "in [0, 1)": {
        f"{OPTIMIZER}.momentum": 1.0,
        f"{OPTIMIZER}.warmup": 1,
        "recipes.scratch.mix.smoothing": 1,
    },
    "a share in (0, 1]": {"data.crop": 0, "recipes.scratch.labels": 0.0},
    "a share in [0, 1]": {"recipes.scratch.mix.prob": 1.1},
    "must be above 1": {"pretrain.tiny.batch_size": 1},
    "must be at least 1": {f"{OPTIMIZER}.horizon": 0.5},
    "1 (grey) or 3 (RGB), got 2": {"data.channels": 2},
    "shares of the steps in (0, 1), ascending": {f"{OPTIMIZER}.milestones": [0.5, 0.2]},
    "need 0 < t_min < t_max": {f"{GRID}.t_min": 80},
    "need 0 <= start < end <= 1": {"pretrain.tiny.target.start": 1},
    "from 1 to 80, got 81": {f"{GRID}.first": 81},
    "must be in [0, 2^64)": {"sample.seed": -1},
    "whole numbers are below 2^64": {"sample.seed": 2**64},
    f"below 2^32, and n0 + n is {2**32}": {"sample.n": 2**32 - 20},
    "expected all, every:K or first:K": {"sample.subset": "every:0"},
    "from 17 to 25": {"export.opset": 5},
    "ascending and not negative": {"report.radii": [0.5, 0.25]},
}
WRONG = [
    *((key, value, said) for said, keys in OUT_OF_RANGE.items() for key, value in keys.items()),
    ("report.radii", [-0.25], "not negative"),
    ("sample.n0", True, "expected int, got True"),
    ("report.radii", [0.0, "far"], "report.radii[1]: expected float"),
    ("models.tiny", "small", "expected dict"),
    ("certify.certificates", "cohen", "expected list, got 'cohen'"),
    ("certify.certificates", ["cohen", "cohen"], "each once"),
    ("certify.alpha", float("nan"), "expected a finite number, got nan"),
    ("certify.alpha", 10**400, "expected a finite number, got a whole number of 1329 bits"),
    (f"{RUN}.sigma", float("inf"), "expected a finite number, got inf"),
    ("sample.precision", "fp23", "or bf16 or fp16 or int8, got 'fp23'. Did you mean 'fp32'?"),
    ("sample.stop", "grit", "anytime). Did you mean 'grid'?"),
    (f"{EVAL}.architecture", "vti", "Did you mean 'vit'?"),
    (f"{EVAL}.architecture", "resnet", "not in its run tiny-rrcm-s050 (vit)"),
    (f"{RUN}.model", "tyny", "not in models (tiny). Did you mean 'tiny'?"),
    (f"{RUN}.start", "pretrained/tyny", "Did you mean 'pretrained/tiny'?"),
]


def test_a_wrong_value_is_refused_where_it_stands(tmp_path, monkeypatch):
    otherwise = []
    for key, value, words in WRONG:
        node = changed(plain(PARAMS), key, value)
        monkeypatch.setattr(params, "read_yaml", lambda path, node=node: node)  # JSON has no inf
        try:
            params.load(tmp_path)
        except ConfigError as error:
            if key in str(error) and words in str(error) and "\n" not in str(error):
                continue
            otherwise.append(f"{key} = {value}: {error}")
        else:
            otherwise.append(f"{key} = {value} is taken")

    assert otherwise == []


@pytest.mark.parametrize("section", ["pretrain.tiny", "recipes.scratch", "denoisers.tiny"])
def test_a_batch_that_training_could_not_share_is_refused_before_it(tmp_path, section):
    node = plain(PARAMS)
    add(node)

    def asked(batch, devices, accumulate):
        compute = at(node, f"{section}.compute")
        compute |= {"devices": devices, "accumulate": accumulate}
        return load(tmp_path, changed(node, f"{section}.batch_size", batch))

    for batch, devices, accumulate in ((9, 2, 1), (9, 1, 2), (12, 2, 4), (3, 4, 1), (9, 0, 2)):
        with refused(ConfigError, f"{section}.batch_size: {batch} cannot be shared evenly"):
            asked(batch, devices, accumulate)
    asked(12, 2, 3)
    asked(9, 0, 3)  # on all GPUs, however many there are


@pytest.mark.parametrize("alpha", [0.5, 0.001])
def test_the_named_number_of_draws_is_the_smallest_that_can_certify(tmp_path, alpha):
    """n draws that all agree give p_A = alpha^(1/n), which must be above one half."""
    enough = next(n for n in range(1, 100) if alpha ** (1 / n) > 0.5)
    node = changed(plain(PARAMS), "certify.alpha", alpha)

    with refused(ConfigError, "sample.n", "can never certify", f"at least {enough} can"):
        load(tmp_path, changed(node, "sample.n", enough - 1 or 1))

    assert load(tmp_path, changed(node, "sample.n", enough)).sample.n == enough


def test_numbers_are_those_of_yaml_1_2(tmp_path):
    """YAML 1.1 reads 1e-4 as text; DVC and we do not. A whole number may stand for a float."""
    text = PARAMS.read_text().replace("tolerance: 1.0e-4", "tolerance: 1e-4")

    made = load(tmp_path, text.replace("clip: 2.0", "clip: 2"))
    clip = made.pretrain["tiny"].optimizer.clip

    assert made.export.tolerance == 0.0001
    assert (clip, type(clip)) == (2.0, float)


NO_MAPPING = (
    *("", "[1, 2]", "data: [1", "data: 1\ndata: 2", "data: *nowhere", "data: !!int many"),
    *("data: 2025-13-32", "\tdata: 1", "data: 1\n--- 2", "[" * 20_000, "a: &a [*a]"),
    *("runs: {1: {}}", "data: 0x" + "f" * 5000, "data: " + "9" * 5000, "data: \x00"),
    *("? [1, 2]\n: 3", "? {a: 1}\n: 3"),
)


def test_what_is_not_a_mapping_of_yaml_is_refused_in_one_line(tmp_path):
    for text in NO_MAPPING:
        with refused(ConfigError, str(tmp_path / "params.yaml")):
            load(tmp_path, text)
    (tmp_path / "params.yaml").write_bytes(b"data: \xff\xfe")
    for path in (tmp_path / "params.yaml", tmp_path):
        with refused(ConfigError, str(path)):
            read_yaml(path)


def test_a_key_that_comes_twice_is_refused_beside_keys_of_another_mapping_too(tmp_path):
    path = tmp_path / "params.yaml"
    more = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc:\n  <<: [*b, *a]\n  y: 4\n"
    path.write_text(more)
    known = {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 3, "y": 4}}
    assert read_yaml(path) == known
    for twice in ("  y: 5\n", "d: {<<: *c, z: 1, z: 1}\n", "d: {z: 1, z: 1}\n"):
        path.write_text(more.replace("c:", "c: &c") + twice)
        with refused(ConfigError, f"{path}: ", "found duplicate key"):
            read_yaml(path)


def test_a_missing_file_is_told_where_presets_come_from(tmp_path):
    with refused(ConfigError, "not found", "rrcm preset digits"):
        params.load(tmp_path / "params.yaml")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("runs.tiny-rrcm-s05", "no 'tiny-rrcm-s05' here. Did you mean 'tiny-rrcm-s050'?"),
        ("run.tiny-rrcm-s050", "no 'run' here. Did you mean 'runs'?"),
        ("data.seed.more", "no 'more' here."),
    ],
)
def test_a_missing_section_is_told_what_it_resembles(section, words):
    with refused(ConfigError, str(PARAMS), section, words):
        sections.read(section, sections.Run, PARAMS)


def test_the_choice_split_is_certified_only_where_there_is_one(tmp_path):
    """The test split needs no such check: where it is not held out, the dataset has one."""
    node = changed(plain(PARAMS), "sample.split", "choice")
    assert load(tmp_path, node).sample.split == "choice"

    with refused(ConfigError, "sample.split: data.choice is 0", "set data.choice, then"):
        load(tmp_path, changed(node, "data.choice", 0))


@pytest.mark.parametrize("rule", ["grid", "spending"])
def test_a_table_shows_only_radii_that_its_rule_settles(tmp_path, rule):
    """Of others the rule may know less than its draws could have told."""
    node = changed(plain(PARAMS), "sample.stop", rule)
    node = changed(node, "report.radii", [0.0, 0.3])

    with refused(ConfigError, f"report.radii: 0.3 is not in stopping.{rule}.radii (0.0, 0.25"):
        load(tmp_path, node)

    assert load(tmp_path, changed(node, "sample.stop", "anytime"))
    assert load(tmp_path, changed(node, f"stopping.{rule}.radii", [0, 0.3, 0.7]))  # 0 is 0.0


DIFFUSION = ROOT / "presets/digits-diffusion.yaml"


@pytest.mark.parametrize(
    "place, value, said",
    [
        ("denoisers.tiny-diffusion.start", "denoisers/tiny-diffusion", "is not in the starting"),
        ("denoisers.dncnn-s025.guide", "models/none", "is not in what may guide"),
        ("denoisers.dncnn-s025.model", "none", "is not in models"),
        ("purified.tiny-dds-s025.denoiser", "denoisers/none", "is not in the denoisers"),
        ("purified.tiny-dds-s025.denoiser", "imported/", "is not in the denoisers"),
        ("purified.tiny-dds-s025.network", "unet", "is not in its denoiser tiny-diffusion (uvit)"),
        ("purified.tiny-dds-s025.run", "none", "is not in runs and ensembles"),
        ("representations.tiny-rrcm.encoder", "pretrained/none", "is not in the pre-trainings"),
        ("representations.tiny-rrcm.model", "denoiser", "is not in pretrained/tiny-rrcm (tiny)"),
        ("denoisers.tiny-told.guide", "pretrained/none", "is not in what may guide"),
        ("denoisers.tiny-told.architecture", "lenet", "is not in pretrained/tiny-rrcm (vit)"),
        ("purified.tiny-dds-s025.denoiser", "denoisers/tiny-told", "is told pretrained/tiny-rrcm"),
        ("generations.tiny-told.denoiser", "denoisers/none", "is not in the denoisers"),
        ("generations.tiny-told.network", "unet", "is not in denoisers/tiny-told (uvit)"),
        ("generations.tiny-told.condition", "none", "is not in the guide of denoisers/tiny-told"),
        ("generations.tiny-diffusion.condition", "pretrained/tiny-rrcm", "is not in the guide of"),
        ("generations.tiny-told.features", "pretrained/none", "is not in the pre-trainings"),
        ("generations.tiny-told.architecture", "lenet", "is not in pretrained/tiny-rrcm (vit)"),
    ],
)
def test_what_refers_to_nothing_is_refused(tmp_path, place, value, said):
    wanted = plain(DIFFUSION)
    *keys, last = place.split(".")
    at(wanted, ".".join(keys))[last] = value

    with refused(ConfigError, f"params.yaml: {place}", said):
        load(tmp_path, wanted)


def test_calls_are_counted_through_what_stands_behind_what():
    whole = shipped("digits-diffusion")
    counted = {name: tuple(cfg.calls().values()) for name, cfg in whole.purified.items()}

    assert counted["tiny-dds-s025"] == counted["tiny-denoised-s025"] == (1, 1)
    assert counted["tiny-densepure1-s025"] == (5, 1)
    assert counted["tiny-densepure5-s025"] == (25, 5)
    assert counted["tiny-diffsmooth15-s025"] == (1, 15)
