"""The command line: commands that need no checkout, and how they find classifiers and records."""
