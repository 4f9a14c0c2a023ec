"""Certifies classifiers by randomized smoothing: noisy votes, stopping rules, certified radii."""
