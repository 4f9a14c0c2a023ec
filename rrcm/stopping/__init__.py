"""Stopping rules: when enough has been drawn, and what may be claimed then."""
