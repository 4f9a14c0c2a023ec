"""Checkpoints of other programs: read without executing them, recognised by names and shapes."""
