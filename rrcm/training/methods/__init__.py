"""Training methods: labelled images in, loss per example out. One file each."""
