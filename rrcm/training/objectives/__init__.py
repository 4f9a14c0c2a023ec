"""Pre-training objectives: unlabelled views in, loss per example out. One file each."""
