"""The images of a training step: their order, loading and augmentation."""
