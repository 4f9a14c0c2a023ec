"""Backends for classifiers trained elsewhere, ONNX files, timm and torch modules; one file each."""
