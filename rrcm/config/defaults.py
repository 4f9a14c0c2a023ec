"""Default settings of certification outside a checkout, where there is no params.yaml."""

from typing import Any

from rrcm.config.certification import Certify, Report, Sample

DRAWS = Sample(
    backend="onnx",
    precision="fp32",
    batch_size=64,
    noise="gaussian",
    n0=100,
    n=10_000,
    seed=0,
    split="test",
    subset="all",
    stop="anytime",
    certificate="cohen",
    alpha=0.001,
)
RADII = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5]
STOPPING: dict[str, dict[str, Any]] = {  # constants of each stopping rule
    "none": {},
    "grid": {"radii": RADII, "beta": 5e-4},
    "spending": {"radii": RADII, "beta": 0.01},
    "anytime": {"tolerance": 0.1, "beta": 1e-3},
}
CERTIFY = Certify(certificates=["cohen"], alpha=0.001)
REPORT = Report(radii=RADII, confidence=0.95)
