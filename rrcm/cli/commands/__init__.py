"""What each command of the library does, without its options."""
