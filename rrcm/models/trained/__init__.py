"""Trained networks: classifiers, ensembles, denoisers and purified classifiers, and their files."""
