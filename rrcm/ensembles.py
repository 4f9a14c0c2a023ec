r"""Ensembles: several networks that see the same noisy input, as one classifier of it.

Horvath et al. (2022), arXiv:2106.06946: networks that differ by nothing but their seed err on
different noise, so their mean votes for one class more often. Smoothing certifies any function of
the noisy input, so this one is certified like a single network. The rules, with scores :math:`f_l`
of members :math:`l = 1 \dots k`:

.. math:: \text{mean\_logits: } \tfrac1k \sum_l f_l(x), \qquad
    \text{mean\_probabilities: } \log \tfrac1k \sum_l \mathrm{softmax}\, f_l(x), \qquad
    \text{plurality: } \#\{l : \arg\max f_l(x) = c\} \text{ for each class } c.

The softmax of the second is the mean of probabilities. A vote is the lowest of the classes with the
highest score, so ties of a plurality go to the lowest class; the authors draw them at random.

``consensus`` K: where the first K members vote for one class, that is the vote, and the scores are
those of the first K alone; all members are combined elsewhere.

Guarantee: a row's scores do not depend on the other rows of its batch if those of members do not. A
batch in which the first K agree on every row is spared the other members, which changes no bit.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rrcm import checkpoints, classifier, registry
from rrcm.classifier import Classifier
from rrcm.config import Model
from rrcm.errors import CheckpointError
from rrcm.files import read_json, write_json
from rrcm.parsing import parse
from rrcm.settings import Ensemble


class Combined(nn.Module):
    """Members [k] as one network; takes what they take, such as (x [B, C, H, W], sigma [])."""

    def __init__(self, members: list[nn.Module], cfg: Ensemble) -> None:
        """Members give scores [B, K], in the same order of classes."""
        super().__init__()
        self.members = nn.ModuleList(members)
        self.cfg = cfg

    def forward(self, *inputs: Tensor) -> Tensor:
        """Scores [B, K], in float32 at least."""
        asked = self.cfg.consensus or len(self.members)
        first = self._scores(inputs, 0, asked)
        if asked == len(self.members):
            return mean(first, self.cfg.rule)
        agreed, early = _agreed(first), self._early(first)

        def alone(agreed: Tensor, early: Tensor, *_: Tensor) -> Tensor:
            return early.clone()  # a branch may not return what it was given

        def together(agreed: Tensor, early: Tensor, *rest: Tensor) -> Tensor:
            first, inputs = [*rest[:asked]], rest[asked:]
            everyone = mean([*first, *self._scores(inputs, asked, None)], self.cfg.rule)
            return torch.where(agreed[:, None], early, everyone)

        operands = (agreed, early, *first, *inputs)
        if torch.compiler.is_exporting():
            return torch.cond(agreed.all(), alone, together, operands)
        lazy = early.device.type == "cpu" and not torch.compiler.is_compiling()
        # A device would have to be waited for, which costs more than most batches would save.
        return early if lazy and bool(agreed.all()) else together(*operands)

    def prefixes(self, *inputs: Tensor) -> Tensor:
        """Scores [B, k, K] of the ensembles of the first 1, 2, …, k members, all in one pass.

        Each is what it would be as an ensemble of its own, bit for bit; one of no more than
        ``consensus`` members combines them all.
        """
        scores = self.each(*inputs)
        found = [self.combine(scores[:j]) for j in range(1, len(scores) + 1)]
        return torch.stack(found, dim=1)

    def each(self, *inputs: Tensor) -> list[Tensor]:
        """Scores [B, K] of every member, in float32 at least."""
        return self._scores(inputs, 0, None)

    def combine(self, scores: list[Tensor]) -> Tensor:
        """Scores [B, K] of an ensemble, from those of its members, [B, K] each."""
        asked = self.cfg.consensus
        if not 0 < asked < len(scores):
            return mean(scores, self.cfg.rule)
        agreed, everyone = _agreed(scores[:asked]), mean(scores, self.cfg.rule)
        return torch.where(agreed[:, None], self._early(scores[:asked]), everyone)

    def fix(self, sigma: float) -> "Combined":
        """The function of pixels at one ``sigma``, of members that can be fixed."""
        return Combined([member.fix(sigma) for member in self.members], self.cfg).eval()

    def _scores(self, inputs: tuple[Tensor, ...], start: int, stop: int | None) -> list[Tensor]:
        found = [member(*inputs) for member in self.members[start:stop]]
        return [scores.to(torch.promote_types(scores.dtype, torch.float32)) for scores in found]

    def _early(self, first: list[Tensor]) -> Tensor:
        """The combination of members that agree; where rounding let it tie, those of the first."""
        early = mean(first, self.cfg.rule)
        kept = early.argmax(dim=1) == first[0].argmax(dim=1)
        return torch.where(kept[:, None], early, first[0])


def mean(scores: list[Tensor], rule: str) -> Tensor:
    """The scores [B, K] of several, [B, K] each, by a rule.

    Sums are taken in order, so that a runtime cannot choose how they round.
    """
    if rule == "mean_probabilities":
        # In logarithms, which stay finite where probabilities do not.
        likely = torch.stack([f.log_softmax(dim=1) for f in scores])
        return likely.logsumexp(dim=0) - math.log(len(scores))
    if rule == "plurality":
        return _sum([_votes(f) for f in scores])
    return _sum(scores) / len(scores)


class Prefixes(nn.Module):
    """`Combined.prefixes` as a network: scores [B, k, K]."""

    def __init__(self, whole: Combined) -> None:
        """Of all members of ``whole``."""
        super().__init__()
        self.whole = whole

    def forward(self, *inputs: Tensor) -> Tensor:
        """Scores [B, k, K]."""
        return self.whole.prefixes(*inputs)


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _votes(scores: Tensor) -> Tensor:
    """1 for the class of the highest score, 0 for others [B, K]; NaN stays NaN, to be refused."""
    classes = torch.arange(scores.shape[1], device=scores.device)
    votes = (classes == scores.argmax(dim=1, keepdim=True)).to(scores.dtype)
    return torch.where(scores.isnan(), scores, votes)


def _agreed(scores: list[Tensor]) -> Tensor:
    """Rows [B] on which all vote for one class, and no score is NaN."""
    label, agreed = scores[0].argmax(dim=1), ~scores[0].isnan().any(dim=1)
    for f in scores[1:]:
        agreed = agreed & (f.argmax(dim=1) == label) & ~f.isnan().any(dim=1)
    return agreed


def read(folder: Path, count: int) -> list[tuple[Classifier, dict[str, Any]]]:
    """The members in ``folder/1`` … ``folder/<count>``, with their ``config.json``.

    Raises:
        CheckpointError: One is missing, too many or damaged, or members differ in their classes or
            the pictures that they take; names both.
    """
    wanted = {str(place) for place in range(1, count + 1)}
    if odd := sorted({path.name for path in folder.glob("[!.]*")} - wanted):
        raise CheckpointError(
            f"{folder / odd[0]}: not one of the {count} members; left by an older params.yaml, "
            "remove it"
        )
    found = [classifier.load(folder / str(place)) for place in range(1, count + 1)]
    for _, config in found[1:]:
        _alike(found[0][1], config, folder)
    return found


def _alike(first: dict[str, Any], other: dict[str, Any], folder: Path) -> None:
    names = f"{first.get('run')} and {other.get('run')}"
    if first["classes"] != other["classes"]:
        raise CheckpointError(
            f"{folder}: {names} are of other classes ({', '.join(first['classes'][:3])}, … and "
            f"{', '.join(other['classes'][:3])}, …; {len(first['classes'])} and "
            f"{len(other['classes'])})"
        )
    sizes = [pictures(config) for config in (first, other)]
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f"{folder}: {names} take other pictures ([C, H, W] = {sizes[0]} and {sizes[1]})"
        )


def pictures(config: dict[str, Any]) -> list[int]:
    """The pictures [C, H, W] that a classifier takes, from its ``config.json``."""
    shape = config["model"]["shape"]
    return [shape["channels"], shape["image_size"], shape["image_size"]]


def save(
    folder: Path,
    members: list[tuple[Classifier, dict[str, Any]]],
    cfg: Ensemble,
    *,
    code: dict[str, str],
    params: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write members as one classifier, ``model.safetensors`` and ``config.json``; returns the last.

    What makes it this function, the rule too, is part of ``model.safetensors``, whose SHA-256 is
    the function's name in votes. Kept beside it: ``code``, file -> SHA-256, and ``params``.
    """
    rule = {"rule": cfg.rule, "consensus": cfg.consensus, "members": cfg.members}
    configs = [config for _, config in members]
    tensors = {
        f"{place}.{name}": tensor
        for place, (network, _) in enumerate(members, start=1)
        for name, tensor in network.state_dict().items()
    }
    about = {"ensemble": json.dumps([rule, configs])}  # the same members, the same bytes
    checkpoints.save(folder / "model.safetensors", tensors, about)
    config = {key: configs[0][key] for key in ("classes", "sigma")} | {"ensemble": rule}
    config |= {"members": configs, "code": code, "params": params or {}}
    write_json(folder / "config.json", config)
    return config


def load(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """A run or an ensemble for inference, in float64, and its ``config.json``.

    It maps (x, sigma) to scores and has `fix`, as the networks of rrcm/folding/ do.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    path = folder / "config.json"
    config = read_json(path, CheckpointError)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: damaged (no mapping)")
    if "ensemble" not in config:
        network, config = classifier.load(folder)
    else:
        network = rebuild(config, folder)
    return inference(network, config), config


def rebuild(
    config: dict[str, Any], folder: Path, tensors: dict[str, Tensor] | None = None
) -> nn.Module:
    """The run or the ensemble of a ``config.json``, as trained, in evaluation mode and frozen.

    ``tensors`` are its weights, by default those in ``folder``, which errors name.

    Raises:
        CheckpointError: ``config`` or the weights are missing or damaged.
    """
    path = folder / "model.safetensors"
    try:
        cfg, classes, members = None, len(config["classes"]), [config]
        if "ensemble" in config:
            where = f"{folder / 'config.json'}: ensemble"
            cfg, members = parse(config["ensemble"], Ensemble, where=where), config["members"]
        networks = [_built(member, classes) for member in members]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: damaged ({error!r})") from None
    if tensors is None:
        tensors, _ = checkpoints.load(path)
    if cfg is None:
        checkpoints.restore(networks[0], tensors, source=str(path))
        return networks[0]
    for place, network in enumerate(networks, start=1):
        own = within(tensors, f"{place}.")
        checkpoints.restore(network, own, source=f"{path}: member {place}")
    return Combined([*networks], cfg).eval()


def within(tensors: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``start``, by the rest of their names."""
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def inference(network: nn.Module, config: dict[str, Any]) -> nn.Module:
    """The inference form of a run or an ensemble, from rrcm/folding/, in float64."""
    if not isinstance(network, Combined):
        return folded(network, config)
    pairs = zip(network.members, config["members"], strict=True)
    return Combined([folded(*pair) for pair in pairs], network.cfg).eval()


def _built(config: dict[str, Any], classes: int) -> Classifier:
    model = parse(config["model"], Model, where="model")
    condition, final_norm = config["condition"], config["final_norm"]
    network = classifier.build(model, classes=classes, condition=condition, final_norm=final_norm)
    return network.eval().requires_grad_(False)


def folded(network: Classifier, config: dict[str, Any]) -> nn.Module:
    """The inference form of a run, from rrcm/folding/."""
    return registry.load("folding", config["model"]["architecture"]).fold(network)
