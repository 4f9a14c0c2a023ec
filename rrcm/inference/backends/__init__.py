"""Runtimes that compute the scores of noisy batches, ONNX Runtime and PyTorch; one file each."""
