"""Labels of images."""

UNKNOWN = -1  # of an image whose class nobody gave
