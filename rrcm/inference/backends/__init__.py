"""Runtimes that compute scores of noisy batches, ONNX Runtime and PyTorch; one file each."""
