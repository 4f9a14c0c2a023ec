"""Datasets, one file each: where raw data come from and what is in them.

A dataset has ``listing(root, link) -> Listing``: the images that ``root``, data/<name>, holds or
describes, verified, or a DataError that names the command which puts them there. ``link`` is a file
that says where picture files are on this machine, if they stay where they are; such a dataset has
``tree(source) -> Tree`` as well, the pictures of a folder (rrcm/data/ingest/manifest.py).
"""
