"""Datasets, one file each: where raw data come from and what they contain.

A dataset has ``listing(root, link) -> Listing``: the verified images in ``root``, data/<name>, or
described there, or a DataError that names the command to get them. If picture files stay where they
are, ``link`` is a file with their path on this machine, and the dataset also has
``tree(source) -> Tree``, the pictures of a folder (rrcm/data/ingest/manifest.py).
"""
