"""Training: the loop, objectives of pre-training, methods of fine-tuning."""
