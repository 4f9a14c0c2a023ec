"""Networks of denoisers, one file each; see rrcm/core/registry.py."""
