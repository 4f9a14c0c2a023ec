"""Whether the code that a stage ran on and the code of now are the same program."""
