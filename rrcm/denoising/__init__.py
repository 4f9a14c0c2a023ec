"""Objectives that denoisers are trained with, one file each; see rrcm/registry.py."""
