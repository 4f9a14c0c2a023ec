"""The UNet of Dhariwal & Nichol (2021), arXiv:2105.05233, in the implementation of diffusers.

Improved diffusion, Nichol & Dhariwal (2021), arXiv:2102.09672, has the same network with fewer
options. With weights released by either paper, which `rrcm import-denoiser` renames, this network
computes the same function as the original.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from diffusers.models.unets.unet_2d import UNet2DModel
from torch import Tensor, nn

from rrcm.core.errors import ConfigError
from rrcm.core.ranges import LAYERS, SIDE, WIDTH, positive, require
from rrcm.core.schema import shown

EPS = 1e-5  # epsilon of every GroupNorm
SAMPLING = {"conv": "conv", "residual": "resnet"}  # our name -> diffusers' name


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Shape of the network, from the full resolution down.

    Level i = 0, 1, … has images of ``image_size`` / 2^i pixels and ``width * mults[i]`` channels,
    in ``blocks`` residual blocks on the way down and one more on the way up. Blocks have attention
    where the images have a size in ``attention``, and so has the middle block; each head has
    ``head_channels`` channels. ``resample`` changes the resolution by a convolution, or by a
    residual block. ``groups`` is the number of groups of GroupNorm, ``dropout`` a probability in
    training. With ``learned_variance`` the output has twice as many channels as the input.
    """

    channels: int
    image_size: int
    width: int
    mults: list[int]
    blocks: int
    attention: list[int]
    head_channels: int
    groups: int
    dropout: float
    resample: Literal["conv", "residual"]
    learned_variance: bool

    def __post_init__(self) -> None:
        positive(self, "image_size", most=SIDE)
        positive(self, "channels", "width", "head_channels", "groups", most=WIDTH)
        positive(self, "blocks", most=LAYERS)
        require(
            self.mults[:1] == [1] and all(0 < mult <= WIDTH for mult in self.mults),
            "mults: one whole number a level, the first 1 (that is width), at most "
            f"{WIDTH}, got {shown(self.mults)}",
        )
        require(
            self.image_size % self.factor == 0,
            f"image_size: {self.image_size} pixels cannot be halved {len(self.mults) - 1} times, "
            "once between each two of mults",
        )
        require(
            self.width % self.groups == 0 and self.width % 2 == 0,
            f"width: must be even and a multiple of groups = {self.groups}, got {self.width}",
        )
        sizes = [self.image_size >> i for i in range(len(self.mults))]
        for size in self.attention:
            require(
                size in sizes,
                f"attention: no level has images of {size} pixels, only {shown(sizes)}",
            )
        once = len({*self.attention}) == len(self.attention)
        require(once, f"attention: each size once, got {shown(self.attention)}")
        levels = zip(sizes, self.mults, strict=True)
        places = [mult for size, mult in levels if size in self.attention]
        for channels in [self.width * mult for mult in [*places, self.mults[-1]]]:
            require(
                channels % self.head_channels == 0,
                f"head_channels: {channels} channels, which have attention, are no whole number of "
                f"heads of {self.head_channels}",
            )
        require(0 <= self.dropout < 1, f"dropout: must be in [0, 1), got {self.dropout}")

    @property
    def factor(self) -> int:
        """The sides of an image must be multiples of this number."""
        return 2 ** (len(self.mults) - 1)


class Network(nn.Module):
    """Maps (input [B, C, H, W], time input [B] or []) to [B, C or 2 C, H, W].

    The time input is any real number; its cosines and sines at frequencies from 1 down to 1e-4
    scale and shift the channels of every residual block.
    """

    supports_recompute: ClassVar[bool] = False

    def __init__(self, cfg: Config) -> None:
        """Initialise the last layer of each residual block, attention and the network to zero.

        This follows the papers: an untrained network outputs zeros, that is, it predicts no noise
        or, under EDM, the clean image c_skip x.
        """
        super().__init__()
        self.factor = cfg.factor
        seen = [cfg.image_size >> i in cfg.attention for i in range(len(cfg.mults))]
        plain = {"conv": ("DownBlock2D", "UpBlock2D")}.get(
            cfg.resample, ("ResnetDownsampleBlock2D", "ResnetUpsampleBlock2D")
        )
        self.unet = UNet2DModel(
            sample_size=cfg.image_size,
            in_channels=cfg.channels,
            out_channels=cfg.channels * (1 + cfg.learned_variance),
            time_embedding_type="positional",
            freq_shift=0,
            flip_sin_to_cos=True,
            down_block_types=tuple("AttnDownBlock2D" if a else plain[0] for a in seen),
            up_block_types=tuple("AttnUpBlock2D" if a else plain[1] for a in reversed(seen)),
            block_out_channels=tuple(cfg.width * mult for mult in cfg.mults),
            layers_per_block=cfg.blocks,
            downsample_padding=1,
            downsample_type=SAMPLING[cfg.resample],
            upsample_type=SAMPLING[cfg.resample],
            dropout=cfg.dropout,
            act_fn="silu",
            attention_head_dim=cfg.head_channels,
            norm_num_groups=cfg.groups,
            attn_norm_num_groups=cfg.groups,  # without it, attention in the middle has no norm
            norm_eps=EPS,
            resnet_time_scale_shift="scale_shift",
        )
        for name, parameter in self.unet.named_parameters():
            if name.rpartition(".")[0].endswith(("conv2", "to_out.0", "conv_out")):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Output for ``x`` and time inputs ``told``; ``x`` may have another size than in training.

        Raises:
            ConfigError: The sides of ``x`` cannot be halved as often as there are levels.
        """
        if any(side % self.factor for side in x.shape[-2:]):
            raise ConfigError(
                f"models: this UNet takes images whose sides are multiples of {self.factor}, and "
                f"these have {x.shape[-2]} x {x.shape[-1]} pixels"
            )
        return self.unet(x, told).sample
