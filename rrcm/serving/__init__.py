"""Certified answers over HTTP."""
