"""Certified robustness of image classifiers by randomized smoothing, centred on rRCM."""
