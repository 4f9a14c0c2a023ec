"""Noise of certification, one per file: ``NAME, ON_GRID, noisy(), normals(), slack()``."""
