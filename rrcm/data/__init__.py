"""Datasets: where raw data come from and what is in them. One file each."""
