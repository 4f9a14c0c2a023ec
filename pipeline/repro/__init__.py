"""Brings stages up to date with DVC so that a stop at any moment loses nothing; no Prefect."""
