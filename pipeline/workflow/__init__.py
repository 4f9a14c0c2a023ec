"""Brings stages up to date with DVC so that a stop loses nothing; `flow/` adds Prefect."""
