"""Sampling of votes: batches of noisy images, a journal to resume from, a budget of time."""
