"""Votes depend on seed, image and draw, and on nothing else: however they are drawn."""

import itertools
import math
import time
import tracemalloc
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from builders import SIGMA, Clock, linear, refused, some
from builders import row as line_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_runs import CFG, CONSTANTS, SIX, N, defined, drawn, header_and_rows, rows, sampled

from rrcm.certification import certify
from rrcm.certification.sampling import batching, drawing, journal, sampler, store, voting
from rrcm.certification.sampling.sampler import subset
from rrcm.certification.votes import bounds, records
from rrcm.certification.votes.counts import ABSTAIN
from rrcm.config.certification import Sampling
from rrcm.core import registry
from rrcm.core.errors import BackendError, ConfigError


@cache
def whole(stop="none", noise="gaussian"):
    return sampled(replace(CFG, stop=stop, noise=noise))


def journal_of(cfg, split=SIX):
    """The bytes of a journal that hears of every look, as they are before it is removed."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "write", lambda *arguments: None)
        patch.setattr(Path, "unlink", lambda path: None)
        list(drawn(folder, cfg, split, every=-1.0))
        return Path(folder, "journal").read_bytes()


every_rule = pytest.mark.parametrize("stop", CONSTANTS)


# One process, or however many.


def test_every_thread_draws(tmp_path, monkeypatch):
    """Although a backend on a CPU leaves the thread that calls it, as a trial does, with one."""
    function, before, pools = linear(), torch.get_num_threads(), []
    pool = batching.ThreadPoolExecutor
    monkeypatch.setattr(drawing, "THREADS", 3)
    monkeypatch.setattr(batching, "ThreadPoolExecutor", lambda n: pools.append(n) or pool(n))
    places = {"journal": tmp_path / "journal", "path": tmp_path / "votes"}
    try:
        torch.set_num_threads(1)
        notes = drawing.run(function, defined(CFG, SIX), SIX, title="", **places)
    finally:
        torch.set_num_threads(before)

    assert pools == [3]
    assert notes["workers"] == 3


@every_rule
def test_workers_and_three_shards_are_one_process(tmp_path, stop):
    cfg, paths = replace(CFG, stop=stop), []
    assert sampled(cfg, workers=3) == whole(stop)
    for i in (3, 1, 2):
        paths.append(tmp_path / f"{i}.jsonl")
        paths[-1].write_bytes(sampled(cfg, shard=f"{i}/3"))

    known = store.reusable(paths, defined(cfg), SIX)

    assert len(known) == 6 and sampled(cfg, known=known.values()) == whole(stop)
    reasons = {row["stop"] for row in rows(whole(stop)).values()}
    assert reasons == {"n"} if stop == "none" else reasons & {"certified", "futile"}


@settings(deadline=None, max_examples=12)
@given(st.permutations(range(6)), st.sampled_from([*CONSTANTS]), st.sampled_from([1, 7, 16, 1000]))
def test_an_image_has_the_same_votes_in_any_order_and_batch(order, stop, batch_size):
    """Of a classifier whose kernels do not know their batch; the header says which batch it was."""
    other = sampled(replace(CFG, stop=stop, batch_size=batch_size), some(SIX, order))

    assert rows(other) == rows(whole(stop))
    assert b'"batch_size":%d,' % batch_size in other.splitlines()[0]


@cache
def journal_bytes(stop):
    return journal_of(replace(CFG, stop=stop))


@settings(deadline=None, max_examples=15)
@given(st.data(), st.sampled_from([*CONSTANTS]))
def test_votes_resumed_after_any_cut_are_the_uninterrupted_ones(data, stop):
    """From a journal that was cut at any byte, with some images in the middle of their draws."""
    text = journal_bytes(stop)
    cut, workers = data.draw(st.integers(0, len(text))), data.draw(st.integers(1, 3))

    assert sampled(replace(CFG, stop=stop), before=text[:cut], workers=workers) == whole(stop)


def test_a_resumed_image_draws_only_what_is_missing():
    """A journal with every line has nothing left to draw."""
    backend = linear()

    sampled(before=journal_bytes("none"), make=lambda: backend)

    assert backend.batches == []


def test_the_journal_hears_of_a_long_image_now_and_then(monkeypatch):
    """A line for each image at its end, and in between not more often than every few seconds."""
    lines = []
    monkeypatch.setattr(journal.Journal, "append", lambda self, row: append(self, row))

    def append(self, row):
        self.rows[row.idx] = row
        lines.append(row)

    for interval, counts in ((math.inf, 6), (-1.0, 6 * 8)):  # a selection, and seven looks
        lines.clear()
        sampled(every=interval)
        assert len(lines) == counts


# What the votes are.


@pytest.mark.parametrize(
    ("stop", "noise"), [*((stop, "gaussian") for stop in CONSTANTS), ("grid", "sound")]
)
def test_the_first_draws_select_and_the_next_ones_estimate(stop, noise):
    """Everything in a row, by the equations, from all draws of an image at once."""
    cfg = replace(CFG, stop=stop, noise=noise)
    module, rule = registry.load("distributions", cfg.noise), defined(cfg).rule()
    last = cfg.n0 + cfg.n
    for place, idx in enumerate(SIX.idx):
        d = torch.arange(last)
        x = torch.from_numpy(SIX.pixels(place)).expand(last, -1, -1, -1)
        image = torch.full_like(d, int(idx))
        noisy = module.noisy(x, SIGMA, seed=0, images=image, draws=d, max_value=16)
        label = linear().scores(noisy).argmax(dim=1).numpy()
        selection, looks = np.bincount(label[: cfg.n0], minlength=3), []
        for look in rule.looks:
            counts = np.bincount(label[cfg.n0 : cfg.n0 + look], minlength=3)
            looks.append([look, {str(c): int(k) for c, k in enumerate(counts) if k}])
            dense = [[votes_.get(str(c), 0) for c in range(3)] for _, votes_ in looks]
            one = line_of(int(idx), 0, selection.tolist(), *dense, stop="")
            why = rule.stop(one.votes(3)) or "n"
            if why != "n":
                break
        assert rows(whole(stop, noise))[idx] == {
            "idx": idx,
            "label": SIX.labels[place],
            "n0": {str(c): int(k) for c, k in enumerate(selection) if k},
            "looks": looks,
            "stop": why,
            **records.CONSTANT_OF_ROW,
        }


def test_the_choice_split_shares_no_randomness_with_the_test_split():
    """What is chosen on one must not know the draws that certify image 0 of the other."""
    test, choice = (defined(split=replace(SIX, name=name)) for name in ("test", "choice"))
    images, draws = torch.arange(6), torch.full((6,), 7)
    x = torch.from_numpy(SIX.pixels(slice(6)))

    for component in registry.names("distributions"):
        bound = [voting.noise(replace(h, noise=component), SIX) for h in (test, choice)]
        noises = [one.noisy(x, images, draws) for one in bound]
        normals = [one.normals(images, draws, (5,)) for one in bound]
        assert not torch.equal(*noises) and not torch.equal(*normals)
    assert test.noise_key == test.seed != choice.noise_key
    assert test.stream != choice.stream
    others = (sampled(split=replace(SIX, name="choice")), sampled(replace(CFG, seed=1)))
    assert all(rows(other) != rows(whole()) for other in others)
    assert replace(choice, stream=test.stream).noise_key == test.seed  # of votes drawn before


def extended(earlier, cfg, split=SIX):
    """Votes of ``cfg`` that go on from those of files ``earlier``, and how many are known."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.jsonl") for number in range(len(earlier))]
        for path, content in zip(paths, earlier, strict=True):
            path.write_bytes(content)
        known = store.reusable(paths, defined(cfg, split), split)
        return sampled(cfg, split, known=known.values()), len(known)


@every_rule
def test_votes_on_other_images_are_not_drawn_again(stop):
    cfg = replace(CFG, stop=stop)
    half, first = (sampled(replace(cfg, subset=subset)) for subset in ("every:2", "first:2"))

    assert extended([half], cfg) == (whole(stop), 3)
    assert extended([half, first], cfg) == (whole(stop), 4)
    assert extended([whole(stop)], replace(cfg, subset="every:2")) == (half, 3)
    shares = [sampled(cfg, shard=f"{i}/3") for i in (1, 3)]  # the second one lacks
    assert extended(shares, cfg) == (whole(stop), 4)


def test_votes_of_another_definition_are_not_taken():
    half, backend, pixels = replace(CFG, subset="every:2"), linear(), SIX.images.copy()
    for changes in ({"seed": 1}, {"n": 2 * N}, {"stop": "anytime"}, {"noise": "sound"}):
        asked = replace(CFG, **changes)

        assert extended([sampled(half)], asked) == (sampled(asked), 0), changes
    pixels[2, 0, 0, 0] ^= 1
    changed = replace(SIX, images=pixels)
    assert extended([sampled(half)], CFG, changed) == (sampled(split=changed), 0)
    backend.weights = "1" * 64
    assert extended([sampled(half, make=lambda: backend)], CFG) == (whole(), 0)
    grid = replace(CFG, stop="grid")
    assert extended([sampled(grid)], replace(grid, alpha=0.04))[1] == 0


def test_votes_do_not_depend_on_labels_nor_without_a_rule_on_alpha():
    asked, labels = replace(CFG, alpha=0.04), SIX.labels.copy()
    labels[4] = (labels[4] + 1) % 3
    corrected = replace(SIX, labels=labels)

    assert extended([whole()], asked) == (sampled(asked), 6)
    assert b'"alpha":0.04' in sampled(asked)
    assert extended([whole()], CFG, corrected) == (sampled(split=corrected), 6)


def test_what_cannot_be_read_or_is_asked_for_again_is_drawn():
    half = sampled(replace(CFG, subset="every:2"))
    torn, edited = half[:-20], half.replace(b'"stop":"n"', b'"stop":"m"', 1)

    assert edited != half
    assert extended([torn, edited, b"", b"{}\n"], CFG) == (whole(), 0)
    assert extended([whole()], CFG) == (whole(), 0)


def test_images_that_time_ran_out_for_are_drawn_unless_they_are_of_a_share(tmp_path):
    cfg, path = replace(CFG, stop="grid"), tmp_path / "cut.jsonl"
    for share, cut in (
        (False, sampled(replace(cfg, subset="every:2"), budget=1e-9)),
        (True, sampled(cfg, shard="1/2", budget=1e-9)),
    ):
        path.write_bytes(cut)
        known = store.reusable([path], defined(cfg, budget=1e-9), SIX)
        assert {row["stop"] for row in rows(cut).values()} == {"budget"}
        assert len(known) == 3 * share


def test_a_subset_is_what_its_rule_says():
    for rule, chosen in [
        ("all", [0, 1, 2, 3, 4, 5, 6]),
        ("every:3", [0, 3, 6]),
        ("every:20", [0]),
        ("first:2", [0, 1]),
    ]:
        assert subset(rule, 7).tolist() == chosen
        assert subset(rule, 7, shard="1/2").tolist() == chosen[::2]
        assert subset(rule, 7, shard="2/2").tolist() == chosen[1::2]
    for rule in ("", "some", "every:", "every:0", "first:-1", "first:x"):
        with refused(ConfigError, "sample.subset: expected all, every:K or first:K", repr(rule)):
            subset(rule, 7)


# The header.


def other(value):
    """Another value of the same kind."""
    if isinstance(value, float):
        return value / 2
    return f"{value}'" if isinstance(value, str) else value + 1


CHANGES = {"noise": "sound", "subset": "first:2", "stop": "grid"}


def test_every_setting_is_in_the_header():
    """So that votes of one setting are never continued, or read, as those of another."""
    for field in [field.name for field in fields(Sampling) if field.name != "stopping"]:
        value = CHANGES[field] if field in CHANGES else other(getattr(CFG, field))
        changed = defined(replace(CFG, **{field: value}))

        if field != "split":  # that of the images, whatever the settings ask for
            assert getattr(changed, field) == value != getattr(defined(), field)
    for name in ("choice", "test", ""):  # pictures of a user are of none
        assert defined(split=replace(SIX, name=name)).split == name


@pytest.mark.parametrize("component", registry.names("distributions"))
def test_noise_says_what_it_is_and_how_far_from_the_theorem(component):
    of = component if component == "uniform" else CFG.certificate
    made = defined(replace(CFG, noise=component, certificate=of))
    module = registry.load("distributions", component)

    assert (made.noise, made.stream) == (component, module.NAME)
    assert made.slack == module.slack(SIGMA, pixels=4, max_value=16)
    assert (made.slack > 0) == (component != "gaussian")


def test_a_shard_is_i_of_k_and_a_budget_needs_a_rule_that_may_stop():
    for shard in ("", "1", "0/2", "3/2", "1/", "a/b", "-1/2", "1/2/3"):
        with refused(ConfigError, "shard: expected i/k", repr(shard)):
            defined(shard=shard)
    others = ", ".join(name for name in registry.names("stopping") if name != "none")
    with refused(ConfigError, "budget: ", "'none'", f"use one of {others}"):
        defined(budget=1.0)


# A budget.


@pytest.mark.parametrize(("stop", "seconds"), [("grid", 0.5), ("grid", 40), ("anytime", 40)])
@pytest.mark.usefixtures("one_batch_a_task")
def test_a_budget_ends_drawing_soundly(monkeypatch, stop, seconds):
    """Rows say why they end, and certificates are those of the rule for what was drawn."""
    cfg, alpha = replace(CFG, stop=stop), 0.05
    monkeypatch.setattr(sampler, "time", Clock(1.0))
    definition, found = header_and_rows(sampled(cfg, budget=float(seconds)))
    rule = definition.rule()
    table = certify.certify(definition, found, certificates=["cohen"], alpha=alpha)
    stops = [row.stop for row in found]

    if seconds < 1:
        assert stops == ["budget"] * 6 and not any(row.n0 or row.looks for row in found)
        assert (table["predict"] == ABSTAIN).all() and (table["n"] == 0).all()
    else:
        assert "budget" in stops and any(row.looks for row in found)
    full = rows(whole(stop))
    for row, line in zip(found, table.to_dict("records"), strict=True):
        drawn = [[draws, {str(c): k for c, k in v.items()}] for draws, v in row.looks]
        assert drawn == full[row.idx]["looks"][: len(drawn)]
        assert row.stop in ("budget", full[row.idx]["stop"])
        if row.looks:
            history = row.votes(3).history(row.votes(3).c_A)
            radius = bounds.radius(rule.complement(history, alpha), sigma=SIGMA)
            assert line["radius"] == certify.floor(max(radius, 0.0))
            assert line["n"] == row.looks[-1][0]
        else:
            assert (line["predict"], line["radius"], line["n"]) == (ABSTAIN, 0, 0)


def test_what_comes_before_the_draws_is_part_of_a_budget(tmp_path):
    """An opened classifier, its checks: a budget that they have used up is refused."""
    run = partial(drawn, tmp_path, replace(CFG, stop="grid"), head={"budget": 20.0})

    with refused(ConfigError, "budget: the 20 s were over before the first draw", "after 21 s"):
        list(run(budget_start=time.monotonic() - 21))
    assert list(run(budget_start=time.monotonic() - 1))[-1].images == 6


@pytest.mark.usefixtures("one_batch_a_task")
def test_under_a_budget_images_take_turns_and_nothing_drawn_is_lost(monkeypatch):
    """None has two looks more than another that still goes on; of none has the journal heard."""
    monkeypatch.setattr(sampler, "time", Clock(1.0))
    _, found = header_and_rows(sampled(replace(CFG, stop="grid"), budget=40.0, every=math.inf))

    looks = [len(row.looks) for row in found if row.stop == "budget"]
    assert all(sum(row.n0.values()) == 20 for row in found)
    assert len(looks) > 1 and max(looks) - min(looks) <= 1 <= max(looks)


# Failures.


@pytest.mark.usefixtures("one_batch_a_task")
def test_a_score_that_is_no_number_is_refused_and_what_was_drawn_is_kept(tmp_path):
    """Nothing stands at the final path, and with a whole classifier the rest goes on."""
    backend, calls = linear(), itertools.count()
    scores = backend.scores

    def broken(x, z=None):
        return scores(x) * (math.nan if next(calls) == 60 else 1)

    backend.scores = broken
    journal, path = tmp_path / "journal", tmp_path / "votes.jsonl"

    with refused(BackendError, "NaN scores for image ") as _:
        list(drawn(tmp_path, backend=backend))

    assert not path.exists()
    assert len(journal.read_bytes().splitlines()) > 1
    first, *_ = drawn(tmp_path)
    assert first.images >= 1
    assert path.read_bytes() == whole()


@pytest.mark.usefixtures("one_batch_a_task")
@pytest.mark.parametrize("every", [-1.0, math.inf])
def test_votes_of_a_classifier_that_changes_are_void(tmp_path, every):
    """Whether it is asked again with each line or at the end: no vote is written or kept."""
    backend, calls = linear(), itertools.count()
    scores = backend.scores
    backend.scores = lambda x, z=None: scores(x).roll(int(next(calls) >= 60), 1)
    journal, path = tmp_path / "journal", tmp_path / "votes.jsonl"

    with refused(BackendError, "the classifier has changed since it was checked", "none are kept"):
        list(drawn(tmp_path, backend=backend, every=every))

    assert not path.exists() and journal.read_bytes() == b""
    list(drawn(tmp_path))
    assert path.read_bytes() == whole()


def test_a_batch_is_never_more_than_all_draws():
    """However large it is asked for; and one that does not fit says so."""
    backend, cfg = linear(), replace(CFG, batch_size=10**6, n=100)

    found = sampled(cfg, make=lambda: backend)

    assert max(shape[0] for shape in backend.batches) == 6 * (cfg.n0 + cfg.n)
    assert rows(found) == rows(sampled(replace(CFG, n=100)))
    torn = linear()
    torn.scores = lambda x, z=None: torch.empty(2**60)
    with refused(BackendError, "batch_size: 16 pictures of 1 x 2 x 2 do not fit into memory"):
        sampled(make=lambda: torn)


def test_classes_must_be_those_of_the_data():
    for classes in (("0", "1"), ("1", "0", "2")):
        with refused(BackendError, "run a-run has 3 classes", "the data"):
            sampled(split=replace(SIX, classes=classes))


def test_progress_counts_images_and_starts_at_what_is_there(tmp_path):
    stopped = drawn(tmp_path)
    seen = [state.images for state in itertools.takewhile(lambda s: s.images < 3, stopped)]
    stopped.close()

    rest = list(drawn(tmp_path))

    assert sorted({*seen}) == [0, 1, 2]
    assert (rest[0].images, rest[0].draws) == (3, 0)
    assert (rest[-1].images, rest[-1].draws) == (6, 3 * 420)  # no line of the others was kept
    assert (tmp_path / "votes.jsonl").read_bytes() == whole()


def test_until_an_image_is_done_the_time_of_all_draws_is_shown(monkeypatch, capsys):
    """100 draws a second, and 6 x 420 of them to do."""
    monkeypatch.setattr(drawing, "time", Clock(1.0))
    start = sampler.SamplingProgress(images=0, draws=0)

    for images, draws in ((0, 100), (1, 420)):
        now = sampler.SamplingProgress(images=images, draws=draws)
        drawing.shown(iter([start, now]), defined(), total=6, title="t")

        assert ("at most 00:24 left" in capsys.readouterr().err) == (images == 0)


# Memory.


@pytest.mark.usefixtures("one_batch_a_task")
def test_memory_does_not_grow_with_draws(tmp_path):
    """Forty times the draws, and no more than a few batches of them at any time."""

    def peak(n):
        backend, cfg = linear(), replace(CFG, n=n, n0=100, batch_size=200)
        tracemalloc.start()
        list(drawn(tmp_path, cfg, some(SIX, [0]), backend=backend))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert {shape[0] for shape in backend.batches} == {200}
        return most

    peak(1000)  # warm: what is loaded once

    assert peak(40_000) < peak(1000) + 200_000
