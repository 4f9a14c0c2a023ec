"""What is measured, how, and on what; never timed inside tests."""
