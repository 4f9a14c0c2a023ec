"""Objectives that denoisers are trained with, one file each; see rrcm/core/registry.py."""
