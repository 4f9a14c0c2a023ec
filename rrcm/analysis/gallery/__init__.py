"""Pages of pictures: certified, attacked, and those on which two classifiers differ."""
