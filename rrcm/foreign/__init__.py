"""Classifiers that were trained elsewhere, as backends. One file each."""
