"""A smoothed classifier as the model that libraries of attacks take."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rrcm.certification.sampling.voting import threads_restored
from rrcm.core.errors import BackendError
from rrcm.core.labels import named
from rrcm.inference.backend import Backend
from rrcm.models.trained import purified
from rrcm.models.trained.base.classifier import Unconditional
from rrcm.training.engine.draws import Draws
from rrcm.training.shared.losses import log_mean, log_probabilities


class Expected(nn.Module):
    r"""Logarithm of the mean probability over ``copies`` noisy copies, [B, C, H, W] -> [B, K].

    .. math:: \log \frac1m \sum_{i=1}^m p(c \mid x + \sigma z_i)

    Its softmax is the mean probability, and its cross-entropy the loss of the smoothed attack of
    Salman et al. (2019), arXiv:1906.04584 (eq. 39). The noise depends on ``seed`` alone, and is the
    same for all pictures and in every call. Without gradients of the classifier, it has none.
    ``sigma`` is a parameter that is not trained, by which libraries see the device.
    """

    noise: Tensor

    def __init__(self, certifier: Any, *, copies: int, seed: int) -> None:
        super().__init__()
        sigma = torch.tensor(certifier.sigma, device=certifier.device)
        self.sigma = nn.Parameter(sigma, requires_grad=False)
        self.register_buffer("noise", sigma.new_empty(0), persistent=False)
        self._certifier, self._copies, self._seed = certifier, copies, seed
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of pixels ``x`` in [0, 1]."""
        with threads_restored():
            if self.noise.shape[2:] != x.shape[1:]:
                grey = torch.full_like(x.detach()[:1], 0.5)
                smoothed, _ = self._certifier._fitted(grey, None)
                network = Unconditional(scores_of(smoothed)[0]).eval()
                self._opened = network, len(named(smoothed.backend.classes))  # no submodule
                draw = Draws(self._seed, 0, purpose="expected")
                copies = grey.expand(self._copies, *x.shape[1:])
                self.noise = float(self.sigma) * draw.normal(copies)[:, None]
            network, classes = self._opened
            log_p = log_probabilities(network, x + self.noise, self.sigma)
            return log_mean(log_p)[:, :classes]


def scores_of(smoothed: Any) -> tuple[Any, bool]:
    """Scores of noisy pixels by the network of a `Smoothed`, and whether they have gradients.

    Raises:
        BackendError: It also takes random numbers.
    """
    backend, function = smoothed.backend, smoothed.backend.function
    if smoothed.trained is not None and not backend.normals:
        loaded: Any = purified.load(smoothed.trained)[0]
        function = loaded.fix(backend.sigma).to(backend.device, torch.float32)
    grey = torch.full((1, *smoothed.shape), 0.5, device=backend.device, requires_grad=True)
    with torch.enable_grad():  # a library may first ask without
        if function is not None and function(grey).requires_grad:
            return function, True
    if backend.normals:
        raise BackendError("attack: this classifier takes random numbers beside the noise")
    return partial(plain, backend), False


def plain(backend: Backend, x: Tensor) -> Tensor:
    """Scores of pixels [B, C, H, W] in batches of a size that ``backend`` takes, [B, K]."""
    size = backend.fixed
    rows = torch.arange(len(x) + -len(x) % size if size else len(x)) % len(x)
    parts = x.detach()[rows].split(size or len(x))
    return torch.cat([backend.scores(part) for part in parts])[: len(x)].clone()
