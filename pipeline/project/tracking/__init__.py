"""Sends the curves and results of trainings to TensorBoard, MLflow or Weights & Biases."""
