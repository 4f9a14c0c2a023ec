"""Small networks compiled for a CPU, one image in each lane of a vector register."""
