r"""Ensembles combine the scores of several networks on one noisy input, Horvath et al. (2022).

arXiv:2106.06946: networks with different seeds err on different noise, so their mean votes for one
class more often. Smoothing certifies any function of the noisy input, so an ensemble is certified
like a single network. The rules, for scores :math:`f_l` of members :math:`l = 1 \dots k`:

.. math:: \text{mean\_logits: } \tfrac1k \sum_l f_l(x), \qquad
    \text{mean\_probabilities: } \log \tfrac1k \sum_l \mathrm{softmax}\, f_l(x).

Under mean_probabilities the softmax of the scores is the mean of the members' probabilities. The
vote goes to the class with the highest score.

Guarantee: a row's scores do not depend on other rows of its batch if the members' scores do not.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.config.certification import Ensemble
from rrcm.core import registry
from rrcm.core.errors import CheckpointError
from rrcm.core.files import read_config, write_json
from rrcm.core.schema import parse, shown
from rrcm.models.trained.base import checkpoint, classifier
from rrcm.models.trained.base.classifier import Classifier


class EnsembleClassifier(nn.Module):
    """Members [k] as one classifier; takes the inputs of a member, such as (x, sigma)."""

    normals: tuple[int, ...] = ()  # no member is random

    def __init__(self, members: list[nn.Module], cfg: Ensemble) -> None:
        """Members return scores [B, K], with classes in the same order."""
        super().__init__()
        self.members = nn.ModuleList(members)
        self.cfg = cfg

    def forward(self, *inputs: Tensor) -> Tensor:
        """Scores [B, K], in float32 at least."""
        return self.combine(self.member_scores(*inputs))

    def member_scores(self, *inputs: Tensor) -> list[Tensor]:
        """Scores [B, K] of every member, in float32 at least."""
        scores = [member(*inputs) for member in self.members]
        return [each.to(torch.promote_types(each.dtype, torch.float32)) for each in scores]

    def combine(self, scores: list[Tensor]) -> Tensor:
        """Scores [B, K] of the ensemble, from those of its members, [B, K] each."""
        return mean(scores, self.cfg.rule)

    def fix(self, sigma: float) -> "EnsembleClassifier":
        """The function of pixels at one ``sigma``, by `fix` of each member."""
        members: list[Any] = [*self.members]  # each with `fix`
        return EnsembleClassifier([member.fix(sigma) for member in members], self.cfg).eval()

    def parity_outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        """``scores``, and those of each member, ``member_1`` … ``member_k``; [B, K] each."""
        scores = self.member_scores(*inputs)
        named = {f"member_{place}": each for place, each in enumerate(scores, start=1)}
        return {"scores": self.combine(scores)} | named


def mean(scores: list[Tensor], rule: str) -> Tensor:
    """Combine several scores, [B, K] each, to scores [B, K] by a rule.

    Terms are added in order, so that rounding does not depend on the runtime.
    """
    if rule == "mean_probabilities":
        # In logarithms: probabilities would underflow.
        likely = torch.stack([f.log_softmax(dim=1) for f in scores])
        return likely.logsumexp(dim=0) - math.log(len(scores))
    return _sum(scores) / len(scores)


def plurality(scores: list[Tensor]) -> Tensor:
    """Votes of several scores for each class, [B, K], from [B, K] each.

    NaN where a score is not finite, so that sampling refuses it.
    """
    return _sum([_votes(f) for f in scores])


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _votes(scores: Tensor) -> Tensor:
    classes = torch.arange(scores.shape[1], device=scores.device)
    votes = (classes == scores.argmax(dim=1, keepdim=True)).to(scores.dtype)
    return torch.where(scores.isfinite(), votes, torch.nan)


def read(folder: Path, count: int) -> list[tuple[Classifier, dict[str, Any]]]:
    """The members in ``folder/1`` … ``folder/<count>``, with their ``config.json``.

    Raises:
        CheckpointError: One is missing, surplus or damaged, or two differ in their classes or the
            shape of their pictures; names both.
    """
    wanted = {str(place) for place in range(1, count + 1)}
    if odd := sorted({path.name for path in folder.glob("[!.]*")} - wanted):
        raise CheckpointError(
            f"{folder / odd[0]}: not one of the {count} members; left by an older params.yaml, "
            "remove it"
        )
    members = [classifier.load(folder / str(place)) for place in range(1, count + 1)]
    (_, first), *others = members
    for _, other in others:
        for what, here, there in (
            ("classes", first["classes"], other["classes"]),
            ("pictures [C, H, W]", pictures(first), pictures(other)),
        ):
            if here != there:
                raise CheckpointError(
                    f"{folder}: {first.get('run')} and {other.get('run')} are for other {what}: "
                    f"{shown(here)} and {shown(there)}"
                )
    return members


def pictures(config: dict[str, Any]) -> list[int]:
    """The shape [C, H, W] of the pictures of a run or an ensemble, from its ``config.json``."""
    first = config["members"][0] if "ensemble" in config else config
    shape = first["model"]["shape"]
    return [shape["channels"], shape["image_size"], shape["image_size"]]


def save(
    folder: Path,
    members: list[tuple[Classifier, dict[str, Any]]],
    cfg: Ensemble,
    *,
    code: dict[str, str],
    params: dict[str, Any] | None = None,
) -> None:
    """Write an ensemble, ``model.safetensors`` and ``config.json``.

    Weights and rule are both in ``model.safetensors``, whose SHA-256 identifies the function in
    votes files. ``config.json`` also keeps ``code``, file -> SHA-256, and ``params``.
    """
    rule = {"rule": cfg.rule, "members": cfg.members}
    configs = [config for _, config in members]
    tensors = {
        f"{place}.{name}": tensor
        for place, (network, _) in enumerate(members, start=1)
        for name, tensor in network.state_dict().items()
    }
    about = {"ensemble": json.dumps([rule, configs])}  # the same members give the same bytes
    checkpoint.save(folder / "model.safetensors", tensors, about)
    config = {key: configs[0][key] for key in ("classes", "sigma")} | {"ensemble": rule}
    config |= {"members": configs, "code": code, "params": params or {}}
    write_json(folder / "config.json", config)


def load(folder: Path, *, trained: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """A run or an ensemble, as `build` makes it, and its ``config.json``.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    config, path = read_config(folder), folder / "model.safetensors"
    return build(config, checkpoint.load(path)[0], path, trained=trained), config


def build(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    path: Path,
    *,
    trained: bool = False,
    which: str = "",
) -> nn.Module:
    """The run or ensemble of a ``config.json``, with the weights ``tensors`` of the file ``path``.

    In evaluation mode, without gradients: as ``trained``, or for inference, in float64, as by
    `folded`. It maps (x, sigma) to scores and has `fix`. ``which`` part of the file it is, for
    errors.

    Raises:
        CheckpointError: ``config`` is damaged, or the weights are of another network.
        ConfigError: ``config`` has keys of another version.
    """
    where = str(path.with_name("config.json"))
    if "ensemble" not in config:
        network = classifier.described(config, where=where)
        checkpoint.restore(network, tensors, source=f"{path}{which}")
        return network if trained else folded(network, config)
    try:
        cfg = parse(config["ensemble"], Ensemble, where=f"{where}: ensemble")
        members = [*enumerate(config["members"], start=1)]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: damaged ({error!r})") from None
    networks = [
        build(one, within(tensors, f"{i}."), path, trained=trained, which=f": member {i}")
        for i, one in members
    ]
    return EnsembleClassifier(networks, cfg).eval()


def within(tensors: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``start``, without that part of the name."""
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def folded(network: nn.Module, config: dict[str, Any]) -> nn.Module:
    """The inference form of a run, from rrcm/models/folding/."""
    return registry.load("folding", config["model"]["architecture"]).fold(network)
