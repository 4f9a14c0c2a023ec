"""What training itself needs: a classifier, its checkpoint, the projector."""
