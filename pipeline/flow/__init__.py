"""The graph of dvc.yaml under Prefect: scheduled, tried again, on one host or several."""
