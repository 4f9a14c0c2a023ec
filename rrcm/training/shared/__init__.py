"""What several methods and objectives are built from: losses and adversarial attacks."""
