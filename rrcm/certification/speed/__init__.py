"""Noisy images per second: the engine beside the loop that papers publish."""
