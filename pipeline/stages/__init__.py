"""One thin script per DVC stage: read, call, write."""
