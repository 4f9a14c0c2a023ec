"""Labels of images."""

UNKNOWN = -1  # the label of an image whose class is not known
NO_CLASS = "(no class)"  # the last class of votes that count what has no score; never certified
