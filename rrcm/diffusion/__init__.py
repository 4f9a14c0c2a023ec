"""Diffusion models and denoisers: training, sampling, and purifying the input of a classifier."""
