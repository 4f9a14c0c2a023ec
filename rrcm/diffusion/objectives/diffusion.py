"""Diffusion models: one network that removes noise of every level.

It predicts the noise, Ho et al. (2020), arXiv:2006.11239, under a linear or a cosine schedule
(Nichol & Dhariwal, 2021, arXiv:2102.09672), or is preconditioned as in EDM (Karras et al., 2022,
arXiv:2206.00364). In both cases the loss is the squared error of the clean image over the squared
scale c_out of the network's output, in model space (docs/theory.md, eq. 49).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from rrcm.core.errors import ConfigError
from rrcm.core.ranges import COUNT, positive, require
from rrcm.models.trained.denoiser import Denoiser, Schedule, Times
from rrcm.noise import units
from rrcm.training.engine.draws import Draws

GUIDED = False  # by a classifier


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The noise ``schedule`` of the network, and the distribution of noise levels in training.

    Under EDM, ln s is normal with ``mean`` and ``std``, in the paper -1.2 and 1.2. The times of a
    VP process are equally likely, and both are 0.
    """

    schedule: Schedule
    mean: float
    std: float

    def __post_init__(self) -> None:
        if self.schedule.kind == "edm":
            positive(self, "std")
            require(abs(self.mean) <= COUNT, f"mean: a logarithm of noise, got {self.mean}")
        else:
            require(
                self.mean == 0 and self.std == 0,
                f"mean, std: of edm alone, set them to 0, got {self.mean} and {self.std}",
            )


def loss(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    guide: nn.Module | None,
    times: Times | None,
    draw: Draws,
    cfg: Config,
) -> Tensor:
    r"""Weighted squared error of the denoised image, [B], for clean pixels ``x`` [B, C, H, W].

    .. math:: \frac{1}{d\, c_\mathrm{out}(s)^2} \| \hat x_0(x_0 + s z, t) - x_0 \|^2,
        \qquad c_\mathrm{out} = -s \text{ or } \frac{s}{2 \sqrt{s^2 + \frac14}}

    (eq. 49): with -s it is the mean squared error of the predicted noise. x_0 is ``x`` in model
    space, and each row has a time of its own. ``y`` and ``guide`` are not used.

    Raises:
        ConfigError: The network also predicts variances, which this loss does not train.
    """
    assert times is not None  # there is a schedule
    t = _times(x, times, draw, cfg)  # [B]
    s = times.level(t)
    clean = units.to_model_space(x)
    noisy = clean + s.to(x.dtype).view(-1, 1, 1, 1) * draw.normal(x)
    denoiser = Denoiser(network, times)
    found, more = denoiser(noisy, t)
    if more is not None:
        raise ConfigError(
            "models: learned_variance: the objective diffusion trains no variances; set it to false"
        )
    weight = denoiser.factors(s)[2].to(x.dtype).square().reciprocal()  # 1 / c_out^2, [B]
    return weight * (found - clean).square().flatten(1).mean(dim=1)


def _times(x: Tensor, times: Times, draw: Draws, cfg: Config) -> Tensor:
    """A time for each row of ``x``, float64 [B]: the first random draw of a step."""
    if cfg.schedule.kind == "edm":
        return (cfg.mean + cfg.std * draw.normal(x[:, 0, 0, 0]).double()).exp()
    steps = cfg.schedule.steps
    return (draw.uniform(x).double() * steps).floor().clamp(max=steps - 1)
