"""Networks, trained networks on disk, and their form for inference."""
