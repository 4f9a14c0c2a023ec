"""Diffusion models and denoisers: their training, and purifying the input of a classifier."""
