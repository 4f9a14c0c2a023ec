"""Inference forms of networks: the same functions, with constants folded into the weights."""
