"""Default settings of certification, where no params.yaml states others; rules have theirs.

The stopping rule is `spending`: it may stop at any look, as a budget or a server's deadline needs,
draws little for a table, certifies single pictures too, and loses fewer easy images than
`proportional`. docs/certifying.md compares the rules; presets state theirs.
"""

from rrcm.config.certification import Sampling

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
    stopping={},
)
CONFIDENCE = 0.95  # of intervals
