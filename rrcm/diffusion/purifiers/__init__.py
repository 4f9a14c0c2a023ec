"""Purifiers: how a denoiser removes the noise from a picture before a classifier looks."""
