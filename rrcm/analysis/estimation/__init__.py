"""Certified accuracy, its intervals, and paired differences between classifiers."""
