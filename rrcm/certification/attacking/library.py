"""The searches of foolbox, of which some need no gradients, for `judging`.

``HopSkipJumpAttack`` and ``BoundaryAttack`` only ask for the likeliest class of `Expected`.
"""

import inspect
import zlib
from functools import partial
from typing import Any

import foolbox
import torch
from torch import Tensor

from rrcm.certification.attacking import expected, judging
from rrcm.certification.attacking.search import Search
from rrcm.certification.votes.records import Header, Row
from rrcm.core.errors import BackendError, ConfigError, one_line
from rrcm.core.registry import suggest
from rrcm.data.splits.shards import Split

LONGER = (1.0, 1.1, 1.2, 1.4, 1.7)  # it stops at the boundary, and a certificate needs a majority
FAILS = (RuntimeError, ValueError, TypeError, AttributeError, AssertionError)  # of its attacks
NOT_STARTED = "init_attack failed"  # no picture of another class was found to begin with


def finder(smoothed: Any, split: Split, name: str, search: Search) -> judging.Finder:
    """Finds what the attack of foolbox ``name`` does, and farther pictures in its directions.

    It attacks the mean of noisy copies, at each radius if its distance is fixed, and takes the
    ``steps`` if it counts them. The same arguments give the same pictures.

    Raises:
        ConfigError: There is no such attack.
        BackendError: It fails, as one by gradients where there are none.
    """
    judging.require(smoothed, split)
    expected.scores_of(smoothed)
    kind, base = getattr(foolbox.attacks, name, None), foolbox.attacks.base.AttackWithDistance
    if not (inspect.isclass(kind) and issubclass(kind, base)):
        maybe = suggest(name, [*vars(foolbox.attacks)])
        raise ConfigError(
            f"--foolbox: foolbox.attacks has no attack {name!r}, but DDNAttack, L2PGD, "
            f"HopSkipJumpAttack and more.{maybe}"
        )
    counted = {"steps": search.steps} if "steps" in inspect.signature(kind).parameters else {}
    effort = {"copies": search.copies} | counted
    made = partial(_near, kind(**counted), smoothed, search.copies)
    said = f"foolbox's {name}, " + ", ".join(f"{value} {key}" for key, value in effort.items())
    return judging.Finder(said=said, asked=effort | {f"foolbox's {name}": "of"}, near=made)


def _near(
    attack: Any, smoothed: Any, copies: int, header: Header, radii: list[float], sigma: float
) -> judging.Near:
    fixed = isinstance(attack, foolbox.attacks.base.FixedEpsilonAttack)
    epsilons = [radius for radius in radii if radius > 0] if fixed else None
    model = expected.Expected(smoothed, copies=copies if sigma else 1, seed=header.seed)
    model.sigma.data.fill_(sigma)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))

    def found(x: Tensor, row: Row) -> list[Tensor]:
        label = torch.tensor([row.label], device=x.device)
        with torch.random.fork_rng():
            torch.manual_seed(zlib.crc32(f"foolbox {row.idx}".encode()))
            try:
                _, points, _ = attack(wrapped, x[None], label, epsilons=epsilons)
            except FAILS as error:
                if NOT_STARTED in str(error):
                    return []
                raise BackendError(
                    f"--foolbox {type(attack).__name__}: {one_line(error)}; HopSkipJumpAttack and "
                    "BoundaryAttack need no gradients"
                ) from None
        ways = (torch.cat(points) if fixed else points) - x
        return [(x + longer * way).clamp(0, 1) for way in ways if way.any() for longer in LONGER]

    return found
