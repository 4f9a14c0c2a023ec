"""What runs an exported or trained classifier on noisy batches. One file each."""
