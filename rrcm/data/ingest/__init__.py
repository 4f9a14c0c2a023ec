"""Turns raw images into shards: listing them, detecting changes, and packing."""
