"""Gaussian noise in float32 from ChaCha20 (RFC 8439), unpredictable without the seed.

Philox is statistically random but predictable by an adversary (Dahiya et al.,
2023, arXiv:2306.14043, who falsify certificates through the generator). Here the random words are
the keystream of a cipher. If a base classifier, image or training set, computed feasibly and
without the seed, had vote shares other than under true randomness, it would distinguish ChaCha20
from random, which is believed infeasible.

What it does not protect against:

- A known seed. Votes files and params.yaml publish it, so choose it at random, after the model and
  the images are fixed: with the seed known, a model can be fitted to these very draws.
- A guessed seed: it has at most 64 bits of entropy, and a small number has almost none.
- Trying seeds and keeping the best; anything done after the votes, such as editing the file.
- Rounding, as in `gaussian`.
"""

import hashlib
import math
import struct

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from rrcm.noise import streams

NAME = "chacha20, box-muller, fp32"
ON_GRID = False
DOMAIN = b"rrcm noise of certification, chacha20, 1\0"
RANDOMISE = b"rrcm randomness of a classifier, chacha20, 1\0"


def noisy(
    x: Tensor, sigma: float, *, seed: int, images: Tensor, draws: Tensor, max_value: int
) -> Tensor:
    """``x + sigma * z``, float32 [B, C, H, W], with z of theory.md, eq. 2b, from ChaCha20 words.

    Guarantee: row b depends on (x[b], sigma, seed, images[b], draws[b]) alone. The key is
    SHA-256(DOMAIN, seed), the nonce (image, draw): no two rows of a seed share a keystream.

    Args: as in `rrcm.certification.distributions.gaussian.noisy`.
    """
    return x + sigma * _normals(seed, images, draws, tuple(x.shape[1:]), DOMAIN)


def normals(seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Normal numbers of a random base classifier, float32 [B, *shape], from ChaCha20 words.

    Guarantee: row b is a function of (seed, images[b], draws[b]), under another key than the noise;
    unpredictable without the seed.
    """
    return _normals(seed, images, draws, shape, RANDOMISE)


def _normals(
    seed: int, images: Tensor, draws: Tensor, shape: tuple[int, ...], domain: bytes
) -> Tensor:
    words = keystream(seed, images, draws, math.prod(shape), domain=domain)
    if draws.device.type != "cpu":
        pairs = torch.from_numpy(words.astype(np.int64)).to(draws.device).view(len(draws), -1, 2)
        z = streams.box_muller(pairs[..., 0], pairs[..., 1]).flatten(1)
        return z[:, : math.prod(shape)].reshape(-1, *shape)
    from rrcm.certification.sampling import philox  # numba takes a while to import

    return philox.box_muller(words, shape)


def keystream(
    seed: int, images: Tensor, draws: Tensor, pixels: int, *, domain: bytes = DOMAIN
) -> np.ndarray:
    """ChaCha20 words of each (image, draw), uint32 [B, pixels rounded up to an even number]."""
    key = hashlib.sha256(domain + struct.pack("<Q", seed)).digest()
    out = np.empty((len(draws), pixels + pixels % 2), dtype="<u4")
    zeros = bytes(out.shape[1] * 4)
    for row, image, draw in zip(out, images.tolist(), draws.tolist(), strict=True):
        # 16 bytes: the block counter from 0, then the nonce
        cipher = Cipher(ChaCha20(key, struct.pack("<QII", 0, image, draw)), mode=None)
        row[:] = np.frombuffer(cipher.encryptor().update(zeros), dtype="<u4")
    return out


def slack(sigma: float, *, pixels: int, max_value: int) -> float:
    """0: by convention, certificates deduct nothing for the rounding of float32 noise."""
    return 0.0
