"""Running classifiers: export to ONNX, backends, and classifiers that others trained."""
