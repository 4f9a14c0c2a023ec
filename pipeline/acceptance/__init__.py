"""Decides whether the code that a stage ran on and the current code are the same program."""
