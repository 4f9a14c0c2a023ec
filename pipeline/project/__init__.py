"""The files of a checkout: data, presets, imported checkpoints, pulled artifacts."""
