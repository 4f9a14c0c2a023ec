"""Noisy images per second of the engine, compared with the loop published with papers."""
