"""The JEPA objective: what is hidden, what is asked for, and what an answer costs."""

import dataclasses
import types

import pytest
import torch
import unlabelled
from helpers import few
from hypothesis import assume, given
from hypothesis import strategies as st
from unlabelled import SIGMAS, B, terms, valid, views

from rrcm.core.errors import ConfigError
from rrcm.models.networks import resnet, vit
from rrcm.training.engine.draws import Draws
from rrcm.training.objectives import jepa

CFG = jepa.Config(**valid(jepa))


def ranges(low, high):
    return st.lists(st.floats(low, high), min_size=2, max_size=2).map(sorted)


configs = st.fixed_dictionaries(
    {
        "targets": st.integers(1, 5),
        "target_area": ranges(0.01, 0.6),
        "target_aspect": ranges(0.2, 5.0),
        "context_area": ranges(0.3, 1.0),
        "min_keep": st.integers(1, 12),
    }
).map(lambda changed: dataclasses.replace(CFG, **changed))


def room(side, cfg):
    """Whether the grid has room for the masks."""
    models = types.SimpleNamespace(Predictor=lambda shape, **rest: types.SimpleNamespace(side=side))
    try:
        jepa.heads(models, unlabelled.SHAPE, cfg)
    except ConfigError:
        return False
    return True


def block(places, side):
    """Height and width of what has to be a block."""
    rows, columns = (
        sorted({f(n) for n in places}) for f in (lambda n: n // side, lambda n: n % side)
    )
    assert places == [r * side + c for r in rows for c in columns]
    assert all(line == [*range(line[0], line[-1] + 1)] for line in (rows, columns))
    return len(rows), len(columns)


@few
@given(st.integers(2, 14), configs, st.integers(0, 1000))
def test_masks(side, cfg, step):
    """Targets are blocks of one size within the grid, all hidden, and enough stays to be seen."""
    assume(room(side, cfg))
    (low, high), (flat, tall) = cfg.target_area, cfg.target_aspect

    def length(area, aspect, rounding):
        return min(max(round(side * (area * aspect) ** 0.5 + rounding), 1), side - 1)

    visible, hidden, asked = jepa.masks(torch.zeros(7, 1), side, Draws(0, step), cfg)

    assert visible.shape[1] >= cfg.min_keep
    assert asked.shape[:2] == (7, cfg.targets)
    for seen, unseen, blocks in zip(visible.tolist(), hidden.tolist(), asked.tolist(), strict=True):
        assert sorted(seen + unseen) == [*range(side**2)]
        assert (seen, unseen) == (sorted(seen), sorted(unseen))
        assert {place for block in blocks for place in block} <= {*unseen}
        ((height, width),) = {block(places, side) for places in blocks}
        assert length(low, flat, -1e-9) <= height <= length(high, tall, 1e-9)
        assert length(low, 1 / tall, -1e-9) <= width <= length(high, 1 / flat, 1e-9)


def test_a_target_that_leaves_too_little_lies_where_the_first_one_does():
    """One 3 x 3 target leaves 7 of 16 patches to be seen, and a second one hardly ever does."""
    cfg = dataclasses.replace(
        CFG, targets=2, target_area=[0.5, 0.55], target_aspect=[1.0, 1.0], min_keep=7
    )
    cfg = dataclasses.replace(cfg, context_area=[1.0, 1.0])

    visible, _, asked = jepa.masks(torch.zeros(50, 1), 4, Draws(0, 0), cfg)

    assert visible.shape[1] == 7
    assert torch.equal(asked[:, 0], asked[:, 1])


def naive(networks, cfg):
    """Equation 25, one image and one patch at a time."""
    online, target = networks
    view, plain = views(jepa).values()
    draw = Draws(0, 0)
    n, z = draw.integer(len(SIGMAS) - 1), draw.normal(plain)
    visible, hidden, asked = jepa.masks(view, 4, draw, cfg)
    nothing = torch.empty(1, 0, dtype=torch.int64)

    def norm(h):
        return (h - h.mean()) / torch.sqrt(h.var(correction=0) + 1e-5)

    def smooth(a, b):
        apart = (a - b).abs()
        return torch.where(apart < 1, apart**2 / 2, apart - 0.5).mean()

    def encode(network, x, sigma, i, places):
        return network["encoder"]((x + sigma * z)[i : i + 1], sigma, places)[0]

    rows = []
    for i in range(B):
        whole = encode(target, view, SIGMAS[-1], i, nothing).detach()[2:]
        seen = encode(online, view, SIGMAS[-1], i, hidden[i : i + 1])
        predicted = online["predictor"](seen[None, 2:], visible[i : i + 1], asked[i : i + 1])[0]
        patches = [
            smooth(predicted[k, j], norm(whole[asked[i, k, j]]))
            for k in range(cfg.targets)
            for j in range(asked.shape[2])
        ]
        summary = smooth(online["summary"](seen[0]), norm(whole.mean(dim=0)))
        pair = [encode(online, plain, SIGMAS[k], i, nothing) for k in (n, n + 1)]
        r, r_next = ([norm(h[0]), norm(h[2:].mean(dim=0))] for h in pair)
        apart = [(a - b.detach()).square().mean() for a, b in zip(r, r_next, strict=True)]
        rows.append(
            sum(patches) / len(patches)
            + cfg.summary * summary
            + cfg.consistency * (apart[0] + apart[1]) / 2
        )
    return torch.stack(rows)


def test_loss_is_its_equation_with_its_gradient():
    cfg = dataclasses.replace(CFG, consistency=1.5, summary=0.7)
    networks = unlabelled.networks(jepa, cfg)
    parameters = [*networks[0].parameters()]

    loss, expected = sum(terms(jepa, networks, cfg).values()), naive(networks, cfg)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(each.sum(), parameters) for each in (loss, expected))
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 6}, "width: 6 must be a multiple of 4 and of 2 heads"),
        ({"targets": 0}, "targets: must be positive, got 0"),
        ({"target_area": [0.2]}, r"target_area: two numbers, ascending, in \(0, 1\], got \[0.2\]"),
    ],
)
def test_masks_that_do_not_exist_are_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CFG, **changed)


def test_masks_that_leave_too_little_to_see_are_refused():
    with pytest.raises(ConfigError) as error:
        unlabelled.networks(jepa, dataclasses.replace(CFG, min_keep=11))

    assert str(error.value) == (
        "pretrain: loss.min_keep: 11 patches cannot stay visible: of a context of 4 x 4 patches a "
        "target may take 6; lower min_keep or target_area, or raise context_area"
    )
    unlabelled.networks(jepa, dataclasses.replace(CFG, min_keep=10))


def test_networks_without_patches_are_refused():
    one = dataclasses.replace(unlabelled.SHAPE, patch_size=8)

    with pytest.raises(ConfigError, match="patches, and resnet has none; take architecture vit"):
        jepa.heads(resnet, None, CFG)
    with pytest.raises(ConfigError, match="jepa hides patches, and the image is a single one"):
        jepa.heads(vit, one, CFG)
