"""Reads the splits of a dataset from disk, and decodes picture files to pixels."""
