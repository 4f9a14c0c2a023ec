"""Splits of a dataset as they lie on disk, and picture files as pixels."""
