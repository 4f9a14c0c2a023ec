"""Networks that denoise, one file each; see rrcm/registry.py."""
