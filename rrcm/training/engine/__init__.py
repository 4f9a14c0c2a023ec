"""The training loop: optimizer, schedules, precision, devices, randomness."""
