"""Noise samplers of certification; each file has ``NAME, noisy, slack``."""
