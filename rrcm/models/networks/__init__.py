"""Network architectures, one file each; inputs are pixels in [0, 1] and sigma in pixel units."""
