"""Labels of images."""

UNKNOWN = -1  # the label of an image whose class is not known
