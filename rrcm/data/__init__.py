"""Datasets, their shards, and batches as functions of (seed, step)."""
