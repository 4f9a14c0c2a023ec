"""Network architectures. One file each; pixels in [0, 1] and sigma in pixel units come in."""
