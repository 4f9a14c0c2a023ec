r"""A classifier that sees what a denoiser makes of the noisy input.

Salman et al. (2020), arXiv:2003.01908 (denoised smoothing); Carlini et al. (2023), arXiv:2206.10550
(DDS); Xiao et al. (2023), arXiv:2211.00322 (DensePure); Zhang et al. (2023), arXiv:2308.14333
(DiffSmooth). Smoothing certifies any function of the noisy input, so the denoiser needs no proof.
With a purifier P of rrcm/purifiers/, a resizing R, a classifier f and m noisy copies of its input,

.. math:: g(x, \sigma, z) = \log \tfrac1m \sum_{i=1}^m
    \mathrm{softmax}\, f\bigl(R\, P(x, \sigma, z) + \sigma' \delta_i\bigr)

(eq. 51), which without copies, or with one, is f's scores themselves. Of K such votes most win, and
ties go to the lowest class (eq. 52). Copies are not clipped.

Randomness is an argument: z are standard normal numbers, which the certifier draws for each draw
anew. So this is a deterministic function of (x, z), and what is certified is the classifier that
draws z by itself: independent of the noise of x and of other draws, as the theorem asks of a
randomised classifier. Fixed copies are constants, a part of the function.

Guarantee: a row's scores depend on that row's x and z alone, if those of the parts do.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrcm import ensembles
from rrcm.ensembles import Combined
from rrcm.settings import Local


class _Precisely(nn.Module):
    """Buffers of its own stay in float32 or better, whatever the module is cast to.

    A cast is meant for networks: rounded to bfloat16, resizing would mix other pixels, and fixed
    noise be another.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        exact = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, before in exact.items():
            cast = getattr(self, name)
            if torch.promote_types(cast.dtype, torch.float32) != cast.dtype:
                setattr(self, name, before.to(cast.device, torch.float32))
        return self


class Behind(_Precisely):
    """A classifier behind a purifier: (x [B, C, H, W], sigma [], z) -> scores [B, K].

    ``normals`` is the shape [S, C, H, W] of a row's z, or () where there is no z. The S fields are
    those of the votes, one after the other, and of each first those of its purification.
    """

    def __init__(
        self,
        purifier: nn.Module,
        classifier: nn.Module,
        resize: "Resize",
        *,
        votes: int,
        normals: tuple[int, ...],
        local: Local,
        copies: Tensor | None,
    ) -> None:
        """Put together what `rebuild` has checked.

        ``classifier`` maps pixels to scores; ``copies`` are the fixed delta [m, C, H, W].
        """
        super().__init__()
        self.purifier, self.classifier, self.resize = purifier, classifier, resize
        self.votes, self.normals, self.local = votes, normals, local
        self.register_buffer("copies", copies)

    def forward(self, x: Tensor, sigma: Tensor, z: Tensor | None = None) -> Tensor:
        """Scores [B, K]: those of the one vote, or how many of the votes each class has."""
        return self.combine(self.each(x, sigma, z))

    def each(self, x: Tensor, sigma: Tensor, z: Tensor | None = None) -> list[Tensor]:
        """Scores [B * votes * copies, K] of the classifier, or of each of its members.

        An ensemble asks all of its members, so that its ``consensus`` spares no work here.
        """
        shape, reverse, local = x.shape[1:], None, self.copies
        if self.votes > 1:
            x = x[:, None].expand(-1, self.votes, *shape).reshape(-1, *shape)
        if z is not None:
            z = z.reshape(-1, self.normals[0] // self.votes, *shape)
            fresh = 0 if self.copies is not None else self.local.copies
            reverse, last = z[:, : z.shape[1] - fresh], z[:, z.shape[1] - fresh :]
            local = last if fresh else local
        seen = self.resize(self.purifier(x, sigma, reverse))
        if local is not None:
            seen = seen[:, None] + self.local.sigma * local
            seen = seen.reshape(-1, *seen.shape[2:])
        if isinstance(self.classifier, Combined):
            return self.classifier.each(seen)
        scores = self.classifier(seen)
        return [scores.to(torch.promote_types(scores.dtype, torch.float32))]

    def combine(self, scores: list[Tensor]) -> Tensor:
        """Scores [B, K] from those of `each`."""
        found = self.purified(scores).unbind(dim=1)
        return ensembles.mean([*found], "plurality") if self.votes > 1 else found[0]

    def purified(self, scores: list[Tensor]) -> Tensor:
        """Scores [B, votes, K] of each purified picture, from those of `each`."""
        combined = isinstance(self.classifier, Combined)
        found = self.classifier.combine(scores) if combined else scores[0]
        if (copies := self.local.copies) > 1:
            parts = found.reshape(-1, copies, found.shape[1]).unbind(dim=1)
            found = ensembles.mean([*parts], "mean_probabilities")
        return found.reshape(-1, self.votes, found.shape[1])

    def fix(self, sigma: float) -> "Fixed":
        """The function of (x), or of (x, z), at one ``sigma``; shares everything."""
        return Fixed(self, sigma).eval()


class Fixed(nn.Module):
    """A purified classifier at one sigma: (x [B, C, H, W], z) -> scores [B, K]."""

    def __init__(self, whole: Behind, sigma: float) -> None:
        """See `Behind.fix`."""
        super().__init__()
        self.whole, self.sigma, self.normals = whole, sigma, whole.normals

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Scores [B, K]; ``z`` [B, *normals] where there are normals."""
        sigma = torch.full((), self.sigma, dtype=torch.float64, device=x.device)
        return self.whole(x, sigma, z)


class Resize(_Precisely):
    """Pictures [B, C, n, n] to [B, C, size, size], bicubic with antialiasing; 0 leaves them alone.

    It is what F.interpolate does, which is linear, as a product with a constant matrix for rows and
    the same for columns, which ONNX has.
    """

    def __init__(self, old: int, new: int) -> None:
        """From ``old`` pixels a side to ``new``."""
        super().__init__()
        self.needed = old != new
        eye = torch.eye(old, dtype=torch.float64)[None, None]
        scaled = F.interpolate(eye, size=(new, old), mode="bicubic", antialias=True)
        self.register_buffer("matrix", scaled[0, 0], persistent=False)  # [new, old]

    def forward(self, x: Tensor) -> Tensor:
        """Pictures of the new size."""
        if not self.needed:
            return x
        matrix = self.matrix.to(x.dtype)
        return matrix @ x @ matrix.T


class Precise(nn.Module):
    """A denoiser's network in the precision that it is cast to, among pictures in float32."""

    def __init__(self, network: nn.Module) -> None:
        """Cast this module, and the network follows."""
        super().__init__()
        self.network = network
        self.register_buffer("kind", torch.empty(0), persistent=False)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """What ``network`` says, in float32 at least."""
        found = self.network(x.to(self.kind.dtype), told.to(self.kind.dtype))
        return found.to(torch.promote_types(found.dtype, torch.float32))
