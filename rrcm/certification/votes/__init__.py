"""Vote counts of an image, confidence bounds of a class probability, and the votes file."""
