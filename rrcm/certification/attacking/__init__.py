"""Attacks on a smoothed classifier: the search for pictures, and their judgement."""
