"""Measurements behind the figures of the docs; tests do not run them."""
