"""The commands that a checkout adds to the command line of the library."""
