"""Drills: what is killed, damaged or doubled on purpose, and what comes of it."""
