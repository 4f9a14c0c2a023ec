"""Backend for checkpoints of other programs, recognised by the names and shapes of their tensors.

Of several files the scores are the mean of theirs, an ensemble of Horvath et al. (2022),
arXiv:2106.06946. With a denoiser the function is: noisy pixels, denoised, normalised, classified;
Salman et al. (2020), arXiv:2003.01908.
"""

import dataclasses
import re
from pathlib import Path

import timm
import torch
from torch import nn

from rrcm.config.certification import Ensemble
from rrcm.config.foreign import Foreign
from rrcm.core.errors import BackendError, CheckpointError, ConfigError
from rrcm.core.ranges import require
from rrcm.core.registry import suggest
from rrcm.core.schema import shown
from rrcm.data.splits.pictures import Fit
from rrcm.inference.foreign import _network, _timm
from rrcm.inference.foreign._normalisation import Channels, Normalisation
from rrcm.inference.foreign._timm import Opened
from rrcm.models.field import reading, recognise
from rrcm.models.field.reading import Statistics
from rrcm.models.trained.ensembles import EnsembleClassifier

NORMALISATIONS: dict[str, Statistics] = {  # data as in the repositories of Cohen et al. and heirs
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "mnist": ((0.1307,), (0.3081,)),  # as in PyTorch's examples
    "none": ((0.0,), (1.0,)),
}
NORMALISATIONS |= {f"{n}-mean": (v[0], (1.0,)) for n, v in NORMALISATIONS.items() if n != "none"}
PLAIN = re.compile(r"resnet\d+|resnext\d+_\d+x\d+d|wide_resnet\d+_2")  # those recognised
MACER = (("net",), ("epoch",))  # where its file has the tensors, and all that is beside them


class Backend(_network.Backend):
    """Classifiers of files, in evaluation mode.

    ``notes`` say of each file what was recognised and how it is normalised, ``inside`` what the
    function does before the files' networks.
    """

    def __init__(self, foreign: Foreign, *, device: str = "cpu") -> None:
        """Read the files, one or several, and a ``denoiser`` in front of them.

        ``normalise``, a key of `NORMALISATIONS`, or ``mean`` and ``std`` (0 and 1 where one is left
        out), replace what the files show.

        Raises:
            BackendError: A network does not run, or the files do not fit each other.
            CheckpointError: A file is missing, damaged, or of no known network.
            ConfigError: No file shows how pixels are normalised, or what is given is invalid.
        """
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        files, denoiser = foreign.source, foreign.denoiser
        asked = given(foreign.normalise, foreign.mean, foreign.std)
        mean, std = asked or (None, None)
        foreign = dataclasses.replace(foreign, mean=mean, std=std, normalise=None, denoiser=None)
        members = [_opened(path, foreign, asked) for path in files]
        self.notes = tuple(note for member in members for note in member.notes)
        fit, self.natural = members[0].fit, members[0].natural
        chains, inside = list[nn.Module](), dict[str, None]()
        for path, member in zip(files, members, strict=True):
            if member.fit.shape != fit.shape:
                raise BackendError(f"{path}: pictures of {member.fit.shape}, not of {fit.shape}")
            by = Normalisation(member.mean, member.std, channels=fit.shape[0], device="cpu")
            chains.append(nn.Sequential(by, member.network))
            inside[str(by)] = None
        ensemble = EnsembleClassifier(chains, Ensemble(members=len(chains), rule="mean_logits"))
        network, self.inside = chains[0] if len(chains) == 1 else ensemble, " and ".join(inside)
        if denoiser is not None:
            before = reading.read(denoiser)
            if before.wrapped:
                raise CheckpointError(
                    f"{denoiser}: it normalises pixels, which denoisers that are known do not"
                )
            front = recognise.network(denoiser, before.tensors, denoiser=True)
            network = nn.Sequential(front.network, network)
            self.inside = f"{front.name}, {self.inside}"
            said = f"{denoiser}: {front.name}, in front of the normalisation"
            self.notes += (said, *before.notes)
        network = network.eval().to(device)
        foreign = dataclasses.replace(foreign, mean=None, std=None)  # inside of it
        super().__init__(network, foreign, fit=fit, name="the checkpoint")


def given(normalise: str | None, mean: Channels, std: Channels) -> Statistics | None:
    """What the user asks for; None to do as the files show. Errors as of `Backend`."""
    if normalise is None:
        return None if mean is std is None else (mean or (0.0,), std or (1.0,))
    known = [*NORMALISATIONS]
    hint = f"no {normalise!r}, only {', '.join(known)}.{suggest(normalise, known)}"
    require(normalise in known, f"normalise: {hint}")
    require(mean is std is None, "normalise: has a mean and std of its own; give it or these")
    return NORMALISATIONS[normalise]


def _opened(path: Path, foreign: Foreign, asked: Statistics | None) -> Opened:
    """The classifier of a file, and a note on what was recognised."""
    read = reading.read(path)
    options = read.found.options
    if _timm.OF_TRAINER in options:
        name = str(options.get("model", options["arch"]))
        made = _timm.opened(dataclasses.replace(foreign, kind="timm", source=name, weights=path))
        said = f"{name} of timm's trainer, normalised as {'given' if asked else 'it says'}"
    else:
        name = str(options.get("arch")).rpartition("/")[2]
        if timm.is_model(name) and not PLAIN.fullmatch(name):  # tensors may be named as if it were
            raise CheckpointError(
                f"{path}: the weights of {name}, which timm has, and whose tensors do not show all "
                f"of it; give --timm {name} --weights {path}"
            )
        found = recognise.network(path, read.tensors)
        (mean, std), why = normalisation(path, read, found, asked)
        shape = (found.shape[0], *(foreign.size or found.shape[1:]))
        fit = Fit(shape=shape, resize="crop", interpolation="bilinear", keep=True)
        made = Opened(found.network, fit, mean, std, read.notes)
        said = f"{found.name}, {found.classes} classes, normalised {why}"
    sides = " x ".join(map(str, made.fit.shape))
    keys, arch = [*read.found.keys], options.get("arch")
    if isinstance(arch, str) and arch not in said:
        keys.append(f"arch {shown(arch)}")
    key = f" ({', '.join(keys)})" if keys else ""
    return made._replace(notes=(f"{path}{key}: {said}; pictures of {sides}", *made.notes))


def normalisation(
    path: Path, read: reading.Read, found: recognise.Recognised, asked: Statistics | None
) -> tuple[Statistics, str]:
    """The mean and std that were ``asked`` for, or that a file shows, and by what.

    Raises:
        ConfigError: It shows none, or a mean and a std that do not fit each other.
    """
    channels, side, _ = found.shape
    if asked is not None:
        mean, std = read.shown
        own = f", not by its own mean {shown(mean)} and std {shown(std)}"
        return asked, "as given" + own * bool(mean or std)
    if (own_ones := read.statistics(path)) is not None:
        return own_ones, "by its own mean and std"
    name = {10: "cifar10", 100: "cifar100"}.get(found.classes, "") if read.layered else ""
    why = f"by {name} in the layer before it"
    if (read.found.keys, read.found.beside) == MACER:
        name, why = "none", "by nothing, as by MACER"
    elif channels == 1:
        name, why = "none" if read.layered else "", "by nothing, as grey pictures by Cohen's heirs"
    elif side == recognise.LARGE:
        name, why = "imagenet", "as usual for ImageNet"
    if not name:
        raise ConfigError(
            f"{path}: {found.name} of {found.classes} classes, and nothing shows how its pixels "
            f"were normalised; give --normalise {', '.join(NORMALISATIONS)}, or --mean and --std"
        )
    return NORMALISATIONS[name], f"{why} (else --normalise)"
