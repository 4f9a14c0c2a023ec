"""Stopping rules: when to stop sampling an image, and the confidence bound that holds then."""
