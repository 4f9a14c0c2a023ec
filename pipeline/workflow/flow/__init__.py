"""Runs the graph of dvc.yaml under Prefect: scheduled, with retries, on one host or several."""
