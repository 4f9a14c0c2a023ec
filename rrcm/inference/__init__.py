"""Running classifiers: export to ONNX, backends, and classifiers trained elsewhere."""
