"""Noise: the units of sigma, counter-based random streams, and grids of noise levels."""
