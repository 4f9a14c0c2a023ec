"""Datasets, one file each: where raw data come from and what they contain.

A dataset has ``CONTENTS``, the numbers of its images and classes, or None if they are known only
when it has been read; ``acquire(root, origin) -> str``, which puts its verified files into
``root``, data/<name>, or a description of them, and returns the lines that ``rrcm data`` prints;
and ``listing(root, link) -> Listing``: the verified images in ``root`` or described there, or a
DataError that names the command to get them. If picture files stay where they are, ``link`` is a
file with their path on this machine (rrcm/data/ingest/manifest.py).
"""
