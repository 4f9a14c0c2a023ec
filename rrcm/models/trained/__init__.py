"""Trained classifiers, ensembles, denoisers and purified classifiers, and their files."""
