"""Parts used in training: the classifier, its checkpoint, the projector."""
