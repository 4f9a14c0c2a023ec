"""Images: datasets, packing them into shards, and reading splits."""
