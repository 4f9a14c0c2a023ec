"""Losses and adversarial attacks that several methods and objectives share."""
