"""Default settings of certification, where no params.yaml states others.

The stopping rule is `spending`: it may stop at any look, as a budget or a server's deadline needs,
draws little for a table, certifies single pictures too, and loses fewer easy images than
`proportional`. docs/certifying.md compares the rules; presets state theirs.
"""

from typing import Any

from rrcm.config.certification import Certify, Sampling

DRAWS = Sampling(
    backend="onnx",
    precision="fp32",
    batch_size=64,
    noise="gaussian",
    n0=100,
    n=10_000,
    seed=0,
    split="test",
    subset="all",
    stop="spending",
    certificate="cohen",
    alpha=0.001,
)
RADII = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5]  # of the presets
CONFIDENCE = 0.95  # of intervals
STOPPING: dict[str, dict[str, Any]] = {
    # Constants of each stopping rule. Nobody has named radii: rrcm/certification/votes/reach.py
    # gives those that n draws can certify at the sigma in question.
    "none": {},
    "grid": {"radii": None, "beta": 5e-4},
    "spending": {"radii": None, "beta": 0.01},
    "proportional": {"radii": None, "beta": 0.3},
    "anytime": {"tolerance": 0.1, "beta": 1e-3},
}
CERTIFY = Certify(certificates=["cohen"], alpha=DRAWS.alpha)
