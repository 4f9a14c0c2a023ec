"""Drills: kills, damaged files and concurrent processes, and their effect on results."""
