"""Networks that denoise, one file each; see rrcm/core/registry.py."""
