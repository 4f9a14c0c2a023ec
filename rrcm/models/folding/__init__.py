"""Inference forms of networks: the same functions, with constant computations folded away."""
