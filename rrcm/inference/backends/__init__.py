"""Runtimes that compute scores of noisy batches: ONNX Runtime, PyTorch, lanes; one file each."""
