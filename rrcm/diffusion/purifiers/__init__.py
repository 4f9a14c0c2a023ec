"""Purifiers: ways of denoising a picture before it is classified."""
