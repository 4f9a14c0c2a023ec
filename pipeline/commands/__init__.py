"""What each command that needs a checkout does, without its options."""
