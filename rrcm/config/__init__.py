"""``params.yaml`` as frozen dataclasses, a file for each part of the graph."""
