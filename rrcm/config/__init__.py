"""``params.yaml`` as frozen dataclasses, one file for each part of the pipeline."""
