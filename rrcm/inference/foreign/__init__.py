"""Backends for classifiers trained elsewhere, from ONNX files and timm; one file each."""
