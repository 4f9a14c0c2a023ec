"""From the images of anybody to shards: what there is, whether it changed, and packing."""
