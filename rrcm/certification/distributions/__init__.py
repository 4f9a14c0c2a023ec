"""Noise samplers of certification; each file has ``NAME, ON_GRID, noisy, normals, slack``."""
